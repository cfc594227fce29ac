#include "sim/chaos/trace.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>

namespace mlt::chaos {

namespace {

using core::CompletionStatus;

// The pairs of one line.
class Fields {
 public:
  explicit Fields(const std::string& line) {
    std::istringstream words(line);
    words >> word_;
    for (std::string pair; words >> pair;) {
      const std::size_t equals = pair.find('=');
      if (equals == std::string::npos) throw std::runtime_error("not key=value: " + pair);
      values_[pair.substr(0, equals)] = pair.substr(equals + 1);
    }
  }

  const std::string& word() const { return word_; }
  bool has(const std::string& key) const { return values_.count(key) != 0; }
  const std::string& text(const std::string& key) const {
    const auto found = values_.find(key);
    if (found == values_.end()) throw std::runtime_error("a " + word_ + " without " + key);
    return found->second;
  }
  std::uint64_t number(const std::string& key) const { return std::stoull(text(key)); }
  std::int64_t time(const std::string& key) const { return std::stoll(text(key)); }
  std::vector<std::uint16_t> ranks(const std::string& key) const {
    std::vector<std::uint16_t> found;
    std::istringstream list(text(key));
    for (std::string one; std::getline(list, one, ',');) found.push_back(static_cast<std::uint16_t>(std::stoul(one)));
    return found;
  }

 private:
  std::string word_;
  std::map<std::string, std::string> values_;
};

CompletionStatus status_of(const std::string& text) {
  static const std::map<std::string, CompletionStatus> known = {
      {"complete", CompletionStatus::kComplete},          {"within_bound", CompletionStatus::kWithinBound},
      {"deadline", CompletionStatus::kDeadline},          {"size_mismatch", CompletionStatus::kSizeMismatch},
      {"type_mismatch", CompletionStatus::kTypeMismatch}, {"peer_failed", CompletionStatus::kPeerFailed},
      {"timed_out", CompletionStatus::kTimedOut},         {"cancelled", CompletionStatus::kCancelled}};
  const auto found = known.find(text);
  if (found == known.end()) throw std::runtime_error("no such status: " + text);
  return found->second;
}

void read_transfer(const Fields& line, const Rank& rank, Operation& operation) {
  sim::Plan& plan = operation.plan;
  plan.peer = static_cast<std::uint16_t>(line.number("peer"));
  plan.tag = line.number("tag");
  operation.generation = line.number("generation");
  const std::uint32_t segment = rank.segment_bytes.at(plan.peer);
  operation.completion.segment_bytes = segment;
  operation.completion.segment_count = plan.bytes == 0 ? 1 : (plan.bytes + segment - 1) / segment;
  if (operation.verb == "receive") {
    operation.kind = core::CompletionKind::kReceive;
    plan.loss_bound = std::stod(line.text("bound"));
    plan.stop = line.text("stop") == "eager" ? core::StopPolicy::kEager : core::StopPolicy::kPatient;
    plan.fill = line.text("fill") == "keep" ? core::Fill::kKeep : core::Fill::kZero;
    plan.deadline_ns = line.time("deadline");
  } else if (line.has("critical_every")) {
    const std::uint64_t every = line.number("critical_every");
    plan.priorities.resize(operation.completion.segment_count);
    for (std::size_t i = 0; i < plan.priorities.size(); i += every) {
      plan.priorities[i] = core::SegmentPriority{core::SegmentPriority::kCritical};
    }
  }
}

void read_post(const Fields& line, Rank& rank) {
  const std::uint64_t id = line.number("id");
  if (rank.operations.count(id) != 0) rank.faults.push_back("operation " + std::to_string(id) + " is posted twice");
  Operation& operation = rank.operations[id];
  operation.id = id;
  operation.verb = line.text("verb");
  operation.plan.host = rank.rank;
  operation.plan.bytes = static_cast<std::uint32_t>(line.number("bytes"));
  operation.plan.element = static_cast<wire::ElementType>(line.number("element"));
  operation.plan.timeout_ns = line.time("timeout");
  operation.posting_ns = line.time("before");
  operation.posted_ns = line.time("after");
  if (line.has("peer")) return read_transfer(line, rank, operation);
  operation.group = line.ranks("group");
  operation.sequence = line.number("sequence");
  operation.average = line.has("average");
  operation.plan.loss_bound = std::stod(line.text("bound"));
  if (line.has("root")) operation.root = static_cast<std::uint16_t>(line.number("root"));
}

// "offset:length,offset:length" of what is missing.
void read_missing(const std::string& text, Operation& operation) {
  if (text == "-") return;
  const std::uint32_t segment = operation.completion.segment_bytes;
  const std::uint32_t count = operation.completion.segment_count;
  operation.bitmap.assign((count + 63) / 64, ~std::uint64_t{0});
  std::istringstream list(text);
  for (std::string range; std::getline(list, range, ',');) {
    const std::uint64_t begin = std::stoull(range);
    const std::uint64_t end = begin + std::stoull(range.substr(range.find(':') + 1));
    if (begin % segment != 0 || (end % segment != 0 && end != operation.plan.bytes) || end > operation.plan.bytes) {
      operation.off_grid = true;
      return;
    }
    for (std::uint64_t i = begin / segment; i * segment < end || (i == begin / segment && begin == end); ++i) {
      operation.bitmap[i / 64] &= ~(std::uint64_t{1} << (i % 64));
    }
  }
}

void read_end(const Fields& line, Rank& rank) {
  const auto found = rank.operations.find(line.number("id"));
  if (found == rank.operations.end()) {
    rank.faults.push_back("operation " + line.text("id") + " completes, which no host posted");
    return;
  }
  Operation& operation = found->second;
  ++operation.ends;
  operation.ended_ns = line.time("t");
  operation.status = status_of(line.text("status"));
  core::Completion& completion = operation.completion;
  completion.status = operation.status;
  completion.total_bytes = line.number("bytes");
  completion.missing_bytes = line.number("missing_bytes");
  completion.allowed_missing_bytes = line.number("allowed");
  completion.elapsed_ns = line.time("elapsed");
  operation.digest = line.number("digest");
  operation.gaps_digest = line.number("gaps");
  operation.guards = line.number("guards");
  if (operation.verb == "receive") read_missing(line.text("missing"), operation);
  completion.received_bitmap = operation.bitmap;
}

Fault read_interval(const Fields& line) {
  Fault fault;
  fault.kind = line.text("kind");
  fault.begin_ns = line.time("begin");
  fault.end_ns = line.time("end");
  if (line.has("ranks")) fault.ranks = line.ranks("ranks");
  fault.cuts = line.has("cuts");
  return fault;
}

void read_line(const Fields& line, Job& job) {
  const std::string& word = line.word();
  if (word == "job") {
    job.name = line.text("name");
    job.peer_timeout_ns = line.time("peer_timeout");
    return;
  }
  if (word == "fault") return job.faults.push_back(read_interval(line));
  if (word == "drop") return job.drops.push_back(read_interval(line));
  if (word == "stall") {
    job.stall_ns = std::max<base::DurationNs>(job.stall_ns, line.time("ns"));
    return;
  }
  const auto number = static_cast<std::uint16_t>(line.number("rank"));
  Rank& rank = job.ranks[number];
  rank.rank = number;
  if (word == "life") return;
  if (word == "segment") {
    rank.segment_bytes[static_cast<std::uint16_t>(line.number("peer"))] =
        static_cast<std::uint32_t>(line.number("bytes"));
  } else if (word == "post") {
    read_post(line, rank);
  } else if (word == "end") {
    read_end(line, rank);
  } else if (word == "cancel") {
    rank.operations.at(line.number("id")).cancelled_ns = line.time("t");
  } else if (word == "later") {
    Operation& operation = rank.operations.at(line.number("id"));
    operation.is_used_again = true;
    operation.later_digest = line.number("digest");
    operation.later_guards = line.number("guards");
  } else if (word == "refused") {
    rank.refusals.push_back({line.text("code"), std::stoi(line.text("peer")), line.time("t")});
  } else if (word == "goodbye") {
    rank.said_goodbye = true;
    rank.goodbye_ns = line.time("t");
  } else {
    throw std::runtime_error("no such record: " + word);
  }
}

}  // namespace

std::map<std::uint64_t, Job> read_traces(const std::string& folder) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".trace") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  std::map<std::uint64_t, Job> jobs;
  for (const auto& path : files) {
    std::ifstream file(path);
    std::size_t count = 0;
    for (std::string text; std::getline(file, text) && !file.eof();) {
      ++count;
      try {
        const Fields line(text);
        Job& job = jobs[line.number("job")];
        job.number = line.number("job");
        read_line(line, job);
      } catch (const std::exception& error) {
        throw std::runtime_error(path.string() + ":" + std::to_string(count) + ": " + error.what());
      }
    }
  }
  return jobs;
}

}  // namespace mlt::chaos
