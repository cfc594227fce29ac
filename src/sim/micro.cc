#include "sim/micro.h"

#include <algorithm>
#include <charconv>

#include "base/check.h"

namespace mlt::sim {

namespace {

// A world of two endpoints takes some 40 KB; a run of hundreds of messages as much again.
constexpr std::size_t kMemoryBytes = 4U << 20;

// Choices that count twice: holding something that long makes runs of thousands of similar steps.
constexpr MicroActions kLong = micro_bit(MicroAction::k_late_1500) | micro_bit(MicroAction::k_stall_1500) |
                               micro_bit(MicroAction::k_hold_data_1500);
std::uint32_t cost(MicroChoice choice) { return (kLong & micro_bit(choice.action)) != 0 ? 2 : 1; }

// Milder choices, for shrinking: a milder one that still violates a rule is easier to analyse.
std::vector<MicroAction> milder(MicroAction action) {
  using A = MicroAction;
  switch (action) {
    case A::k_late_1500:
    case A::k_stall_1500:
    case A::k_hold_data_1500:
      return {A::k_swap, A::k_late_3, A::k_late_30};
    case A::k_late_30:
    case A::k_stall_30:
    case A::k_hold_data_30:
      return {A::k_swap, A::k_late_3};
    case A::k_late_3:
    case A::k_stall_3:
    case A::k_hold_data_3:
      return {A::k_swap};
    case A::k_copy_late:
      return {A::k_copy};
    case A::k_disconnect_apart:
      return {A::k_disconnect};
    default:
      return {};
  }
}

}  // namespace

std::string MicroRun::text() const {
  std::string text = std::to_string(scenario) + "/";
  for (const Step& step : steps) {
    if (text.back() != '/') text += ",";
    text += std::to_string(step.point) + ":" + micro_action_name(step.choice.action);
    if (step.choice.argument != 0) text.append("=").append(std::to_string(step.choice.argument));
  }
  return text;
}

bool MicroRun::parse(const std::string& text, MicroRun& run) {
  const std::size_t slash = text.rfind('/');
  if (slash == std::string::npos) return false;
  const char* at = text.data();
  const char* const end = at + text.size();
  const auto number = [&](auto& value) {
    const auto [next, error] = std::from_chars(at, end, value);
    if (error != std::errc{}) return false;
    at = next;
    return true;
  };
  const auto skip = [&](char c) { return at != end && *at == c ? (++at, true) : false; };
  run = MicroRun{};
  const std::vector<MicroScenario>& scenarios = micro_scenarios();
  const auto named = std::ranges::find(scenarios, text.substr(0, slash), &MicroScenario::name);
  if (named != scenarios.end()) {
    run.scenario = static_cast<std::uint32_t>(named - scenarios.begin());
    at += slash + 1;
  } else if (!number(run.scenario) || run.scenario >= scenarios.size() || !skip('/')) {
    return false;
  }
  while (at != end) {
    Step step;
    if (!run.steps.empty() && !skip(',')) return false;
    if (!number(step.point) || !skip(':')) return false;
    const char* const name_end = std::find_if(at, end, [](char c) { return c == '=' || c == ','; });
    const std::string name(at, name_end);
    at = name_end;
    std::size_t action = 0;
    while (action < static_cast<std::size_t>(MicroAction::kCount) &&
           name != micro_action_name(static_cast<MicroAction>(action))) {
      ++action;
    }
    if (action == static_cast<std::size_t>(MicroAction::kCount)) return false;
    step.choice.action = static_cast<MicroAction>(action);
    if (skip('=') && !number(step.choice.argument)) return false;
    run.steps.push_back(step);
  }
  return true;
}

Micro::Micro() : memory_(kMemoryBytes) {}

void Micro::open(std::uint32_t scenario) {
  const MicroScenario& of = micro_scenarios()[scenario];
  memory_.clear();
  const WorldMemory::Use use(memory_);
  world_ = new MicroWorld(of);
  MLT_CHECK(memory_.used() > sizeof(MicroWorld));  // operator new does not use WorldMemory: copies would be empty
}

MicroVerdict Micro::verdict() {
  const WorldMemory::Use use(memory_);
  if (world_->fault().empty()) world_->finish();
  MicroVerdict verdict;
  verdict.digest = world_->digest();
  verdict.steps = world_->steps();
  return verdict;
}

void Micro::exhaustive(std::uint32_t scenario, const MicroLimits& limits, const Failed& failed) {
  limits_ = limits;
  failed_ = &failed;
  stopped_ = false;
  current_.scenario = scenario;
  current_.steps.clear();
  current_.steps.reserve(limits.depth);
  copies_.resize(std::max<std::size_t>(copies_.size(), limits.depth + 1));
  open(scenario);
  steps_before_ = 0;
  explore(limits.depth);
}

// Explores from the current state: every run with up to `depth` more choices. The world is finished afterwards.
void Micro::explore(std::uint32_t depth) {
  WorldMemory::Copy& copy = copies_[depth];
  while (!world_->over() && !stopped_) {
    MicroWorld::Choices choices;
    if (depth > 0 && world_->point() < limits_.horizon) world_->find_choices(limits_.actions, choices);
    if (choices.count > 0) {
      memory_.save(copy);
      for (std::size_t i = 0; i < choices.count; ++i) {
        if (cost(choices.of[i]) > depth) continue;
        totals_.steps += world_->steps() - steps_before_;
        steps_before_ = world_->steps();
        current_.steps.push_back({world_->point(), choices.of[i]});
        {
          const WorldMemory::Use use(memory_);
          world_->choose(choices.of[i]);
        }
        explore(depth - cost(choices.of[i]));
        if (stopped_) return;
        current_.steps.pop_back();
        memory_.restore(copy);
        steps_before_ = world_->steps();
      }
    }
    const WorldMemory::Use use(memory_);
    world_->choose({});
  }
  if (!stopped_) end_run();
}

void Micro::end_run() {
  const MicroVerdict ended = verdict();
  totals_.steps += ended.steps - steps_before_;
  steps_before_ = ended.steps;
  ++totals_.runs;
  if (limits_.replay_every > 0 && totals_.runs % limits_.replay_every == 0 && world_->fault().empty()) {
    // The copies remain; the world is replayed to its end from its beginning, at the same addresses.
    const MicroRun run = current_;
    const MicroVerdict again = replay(run);
    current_ = run;
    ++totals_.replayed;
    if (again.digest != ended.digest && world_->fault().empty()) {
      const WorldMemory::Use use(memory_);
      world_->fail("the run goes another way from its beginning than from a copy");
    }
  }
  if (world_->fault().empty()) return;
  ++totals_.failed;
  const std::string fault = world_->fault();
  if (!(*failed_)(current_, fault)) stopped_ = true;
}

MicroVerdict Micro::replay(const MicroRun& run, const std::function<void(const TraceRecord&)>* trace) {
  current_ = run;
  open(run.scenario);
  world_->trace = trace;
  std::size_t next = 0;
  while (!world_->over()) {
    while (next < run.steps.size() && run.steps[next].point < world_->point()) ++next;
    MicroChoice choice;
    if (next < run.steps.size() && run.steps[next].point == world_->point()) choice = run.steps[next].choice;
    // Choices that are not possible at this point are skipped.
    if (!world_->allows(choice)) choice = {};
    if (trace != nullptr && choice.action != MicroAction::k_next) {
      (*trace)({world_->now(), TraceKind::kNote, 0, nullptr, Fate::k_sent,
                "choice " + std::to_string(world_->point()) + ": " + micro_action_name(choice.action)});
    }
    const WorldMemory::Use use(memory_);
    world_->choose(choice);
  }
  MicroVerdict result = verdict();
  result.fault = world_->fault();
  return result;
}

MicroVerdict Micro::random_run(std::uint64_t seed, MicroActions actions, MicroRun& run) {
  base::Prng prng(base::Prng(seed ^ 0x6D6963726FULL).next());
  current_.scenario = static_cast<std::uint32_t>(prng.below(micro_scenarios().size()));
  current_.steps.clear();
  // Few choices or many, early or throughout.
  std::uint64_t left = 3 + prng.below(14);
  const double chance = 0.02 + 0.4 * prng.uniform() * prng.uniform();
  open(current_.scenario);
  while (!world_->over()) {
    MicroChoice choice;
    if (left > 0 && prng.chance(chance)) {
      MicroWorld::Choices choices;
      world_->find_choices(actions, choices);
      if (choices.count > 0) {
        choice = choices.of[prng.below(choices.count)];
        current_.steps.push_back({world_->point(), choice});
        --left;
      }
    }
    const WorldMemory::Use use(memory_);
    world_->choose(choice);
  }
  MicroVerdict result = verdict();
  result.fault = world_->fault();
  ++totals_.runs;
  totals_.steps += result.steps;
  if (!result.fault.empty()) ++totals_.failed;
  run = current_;
  return result;
}

MicroRun Micro::shrink(const MicroRun& run) {
  MicroRun best = run;
  const auto fails = [&](const MicroRun& tried) { return !replay(tried).fault.empty(); };
  for (bool smaller = true; smaller;) {
    smaller = false;
    for (std::size_t i = 0; i < best.steps.size() && !smaller; ++i) {
      MicroRun tried = best;
      tried.steps.erase(tried.steps.begin() + static_cast<std::ptrdiff_t>(i));
      // A removed choice may have removed choice points too: try the remaining ones earlier as well.
      for (const std::uint32_t earlier : {0U, 1U, 2U}) {
        MicroRun moved = tried;
        for (std::size_t later = i; later < moved.steps.size(); ++later) {
          moved.steps[later].point -= std::min(moved.steps[later].point, earlier);
        }
        if (!fails(moved)) continue;
        best = moved;
        smaller = true;
        break;
      }
    }
    for (std::size_t i = 0; i < best.steps.size() && !smaller; ++i) {
      for (const MicroAction action : milder(best.steps[i].choice.action)) {
        MicroRun tried = best;
        tried.steps[i].choice.action = action;
        if (!fails(tried)) continue;
        best = tried;
        smaller = true;
        break;
      }
    }
  }
  return best;
}

}  // namespace mlt::sim
