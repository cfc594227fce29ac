#include "sim/micro_scenario.h"

namespace mlt::sim {

namespace {

using base::kMicrosecond;
using base::kMillisecond;
using core::SegmentPriority;

constexpr base::DurationNs kLate = 5 * kMillisecond;

MicroTransfer transfer(std::uint32_t segments, double loss_bound, std::uint64_t tag = 7) {
  MicroTransfer made;
  made.send.host = made.receive.peer = 0;
  made.send.peer = made.receive.host = 1;
  made.send.tag = made.receive.tag = tag;
  made.send.bytes = made.receive.bytes = segments * MicroScenario::kSegmentBytes;
  made.receive.loss_bound = loss_bound;
  return made;
}

void turn_round(MicroTransfer& made) {
  std::swap(made.send.host, made.send.peer);
  std::swap(made.receive.host, made.receive.peer);
}

void make_first_critical(MicroTransfer& made) {
  const std::uint32_t segments = made.send.bytes / MicroScenario::kSegmentBytes;
  made.send.priorities.assign(segments, SegmentPriority::important(0));
  if (!made.send.priorities.empty()) made.send.priorities[0].bits |= SegmentPriority::kCritical;
}

// Builds the list: each scenario is the previous one with the changes made by a function of this class.
class Maker {
 public:
  std::vector<MicroScenario> make() {
    singles();
    ends();
    forms();
    pairs();
    tight();
    misfits();
    dead_class();
    forgotten();
    return std::move(made_);
  }

 private:
  struct Variant {
    std::uint8_t paths = 1;
    bool late = false;  // the receive is posted after the data has arrived
    std::string text() const {
      return std::to_string(paths) + (paths == 1 ? " path" : " paths") + (late ? ", receive late" : "");
    }
  };
  static std::vector<Variant> variants() { return {{1, false}, {1, true}, {2, false}, {2, true}}; }

  MicroScenario& add(const std::string& name, const Variant& variant, std::vector<MicroTransfer> transfers) {
    MicroScenario scenario;
    scenario.name = name + ", " + variant.text();
    scenario.paths = variant.paths;
    for (MicroTransfer& each : transfers) {
      // A receive posted at the same time as its send is posted first.
      if (variant.late) each.receive_at_ns += kLate;
    }
    scenario.transfers = std::move(transfers);
    made_.push_back(std::move(scenario));
    return made_.back();
  }

  static std::string bound(const MicroTransfer& made) {
    if (made.receive.loss_bound == 0) return "p 0";
    return made.receive.stop == core::StopPolicy::kEager ? "p 0.5 eager" : "p 0.5 patient";
  }
  static std::string size(const MicroTransfer& made) {
    const std::uint32_t segments = made.send.bytes / MicroScenario::kSegmentBytes;
    return std::to_string(segments) + (segments == 1 ? " segment" : " segments");
  }

  void singles() {
    for (const std::uint32_t segments : {1U, 2U, 3U, 4U}) {
      for (const int policy : {0, 1, 2}) {
        for (const bool critical : {false, true}) {
          MicroTransfer one = transfer(segments, policy == 0 ? 0 : 0.5);
          if (policy == 2) one.receive.stop = core::StopPolicy::kEager;
          if (critical) make_first_critical(one);
          const std::string name = size(one) + ", " + bound(one) + (critical ? ", first critical" : "");
          for (const Variant& variant : variants()) add(name, variant, {one});
        }
      }
    }
    for (const Variant& variant : variants()) add("6 segments, p 0.5 patient", variant, {transfer(6, 0.5)});
    for (const Variant& variant : variants()) add("empty", variant, {transfer(0, 0)});
  }

  // Operations that end other than by data.
  void ends() {
    for (const Variant& variant : variants()) {
      for (const double p : {0.0, 0.5}) {
        const std::string text = p == 0 ? "p 0" : "p 0.5 patient";
        add("2 segments, " + text + ", cancelled", variant, {transfer(2, p)}).cancels = true;
        add("2 segments, " + text + ", disconnected", variant, {transfer(2, p)}).disconnects = true;
        for (const base::DurationNs deadline : {30 * kMicrosecond, 4 * kMillisecond}) {
          MicroTransfer one = transfer(3, p);
          one.receive.deadline_ns = deadline;
          add("3 segments, " + text + ", deadline " + std::to_string(deadline / 1'000) + " us", variant, {one});
        }
      }
    }
    for (const Variant& variant : variants()) {
      MicroTransfer one = transfer(2, 0.5);
      one.receive.timeout_ns = one.send.timeout_ns = 40 * kMillisecond;
      add("2 segments, time-out 40 ms", variant, {one});
      MicroTransfer alone = transfer(2, 0);
      alone.received = false;
      alone.send.timeout_ns = 120 * kMillisecond;
      if (!variant.late) add("2 segments, never received", variant, {alone});
    }
  }

  void forms() {
    for (const Variant& variant : variants()) {
      MicroTransfer keep = transfer(3, 0.5);
      keep.receive.fill = core::Fill::kKeep;
      add("3 segments, p 0.5 patient, keep", variant, {keep});
      MicroTransfer placed = transfer(3, 0.5);
      placed.receive.by_place_function = true;
      add("3 segments, p 0.5 patient, place function", variant, {placed});
      MicroTransfer classified = transfer(3, 0.5);  // the oracle supplies the priorities while it sends
      classified.send.priorities = {SegmentPriority{0}, SegmentPriority::important(0), SegmentPriority{0}};
      add("3 segments, p 0.5 patient, important last", variant, {classified});
      MicroTransfer odd = transfer(3, 0.5);
      odd.send.bytes = odd.receive.bytes = 20;
      add("2 and a half segments, p 0.5 patient", variant, {odd});
      add("2 segments, p 0.5 patient, timestamps wrap", variant, {transfer(2, 0.5)}).timestamps_wrap = true;
    }
  }

  void pairs() {
    for (const Variant& variant : variants()) {
      for (const double p : {0.0, 0.5}) {
        const std::string text = p == 0 ? ", p 0" : ", p 0.5 patient";
        MicroTransfer first = transfer(2, p);
        MicroTransfer second = transfer(2, p);
        add("tag used twice" + text, variant, {first, second});
        second.send_at_ns = second.receive_at_ns = kMillisecond;
        add("tag used again" + text, variant, {first, second});
        second = transfer(2, p, 8);
        first.send.order = 1;
        add("two tags, the second first" + text, variant, {first, second});
        MicroScenario& cancelled = add("two tags, cancelled" + text, variant, {transfer(2, p), transfer(2, p, 8)});
        cancelled.cancels = true;
        cancelled.early_segments = 2;
        add("tag used again, cancelled" + text, variant, {transfer(1, p), transfer(2, p)}).cancels = true;
        MicroTransfer back = transfer(2, p);
        turn_round(back);
        add("both ways" + text, variant, {transfer(2, p), back});
        MicroTransfer later = transfer(2, p);
        later.send_at_ns = later.receive_at_ns = 3 * kMillisecond;
        add("tag used again after a new connection" + text, variant, {transfer(1, p), later}).disconnects = true;
      }
    }
  }

  // Limits of one.
  void tight() {
    for (const Variant& variant : variants()) {
      for (const double p : {0.0, 0.5}) {
        const std::string text = p == 0 ? ", p 0" : ", p 0.5 patient";
        add("4 segments, window of two" + text, variant, {transfer(4, p)}).window_bytes = 100;
        add("4 segments, window of one" + text, variant, {transfer(4, p)}).window_bytes = 1;
        add("3 segments, one early" + text, variant, {transfer(3, p)}).early_segments = 1;
        MicroScenario& both = add("two tags, one early transfer" + text, variant, {transfer(2, p), transfer(2, p, 8)});
        both.early_transfers = both.early_segments = 1;
        MicroScenario& short_queues =
            add("two tags, queues of one" + text, variant, {transfer(2, p), transfer(1, p, 8)});
        short_queues.reply_queue = short_queues.finished_log = 1;
        add("3 segments, an ACK each" + text, variant, {transfer(3, p)}).packets_per_ack = 1;
      }
    }
  }

  // The two sides disagree.
  void misfits() {
    for (const Variant& variant : variants()) {
      MicroTransfer larger = transfer(2, 0);
      larger.receive.bytes = 24;
      add("2 segments into 3", variant, {larger, transfer(1, 0)});
      MicroTransfer empty = transfer(0, 0);
      empty.receive.bytes = 8;
      add("nothing into 1", variant, {empty});
      MicroTransfer none = transfer(1, 0);
      none.receive.bytes = 0;
      add("1 segment into nothing", variant, {none});
      MicroTransfer other = transfer(2, 0);
      other.receive.element = wire::ElementType::kInt32;
      add("2 segments of another type", variant, {other});
    }
  }

  // All replies use the control connection.
  void dead_class() {
    for (const Variant& variant : variants()) {
      for (const double p : {0.0, 0.5}) {
        const std::string text = p == 0 ? ", p 0" : ", p 0.5 patient";
        add("2 segments, no control datagrams" + text, variant, {transfer(2, p)}).control_lost = true;
      }
    }
  }

  // A tag that is forgotten as soon as another one is used, and then reused.
  void forgotten() {
    for (const Variant& variant : variants()) {
      for (const bool cancels : {false, true}) {
        for (const bool ahead : {false, true}) {
          MicroTransfer other = transfer(1, 0, 8);
          MicroTransfer again = transfer(2, 0);
          other.send_at_ns = other.receive_at_ns = kMillisecond;
          again.send_at_ns = again.receive_at_ns = 2 * kMillisecond;
          if (ahead) again.receive_at_ns = 0;
          const std::string text = std::string(ahead ? ", received ahead" : "") + (cancels ? ", cancelled" : "");
          MicroScenario& made = add("tag forgotten and used again" + text, variant, {transfer(1, 0), other, again});
          made.retire_after = 1;
          made.cancels = cancels;
        }
      }
    }
  }

  std::vector<MicroScenario> made_;
};

}  // namespace

const std::vector<MicroScenario>& micro_scenarios() {
  static const std::vector<MicroScenario> all = Maker().make();
  return all;
}

}  // namespace mlt::sim
