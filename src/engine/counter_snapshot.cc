#include "engine/counter_snapshot.h"

#include <span>
#include <string>
#include <utility>

#include "core/counter.h"
#include "io/counters.h"

namespace mlt::engine {

void CounterSnapshot::take(const Sources& sources) {
  std::vector<CounterValue> values;
  for (std::size_t i = 0; i < core::kCounterNames.size(); ++i) {
    values.push_back({core::kCounterNames[i], sources.endpoint.counters().values()[i]});
  }
  const auto add = [&](std::span<const io::NamedCounter> counters) {
    for (const io::NamedCounter& counter : counters) values.push_back({std::string(counter.name), counter.value});
  };
  const OpenedDatapath& datapath = sources.datapath;
  add(datapath.network->counters());
  if (datapath.outer.get() != datapath.network) add(datapath.outer->counters());
  add(sources.channel.counters());
  values.push_back({"engine_send_failures", sources.send_failures});
  values.push_back({"engine_loops", sources.loops});
  const Driving::Counts& drove = sources.driving.counts();
  values.push_back({"engine_sleeps", drove.sleeps.load()});
  values.push_back({"engine_driven_by_waiters", drove.driven_by_waiters.load()});
  values.push_back({"engine_driven_by_posts", drove.driven_by_posts.load()});
  values.push_back({"engine_driven_by_polls", drove.driven_by_polls.load()});
  values.push_back({"engine_io_takeovers", drove.takeovers.load()});
  values.push_back({"engine_wakes", drove.wakes.load()});
  values.push_back({"engine_spins_won", sources.driving.spin().won()});
  values.push_back({"engine_spins_lost", sources.driving.spin().lost()});
  values.push_back({"rings_cut_by_rate", sources.rings_cut_by_rate});
  values.push_back({"checksums_compared", sources.checksums.compared});
  values.push_back({"checksums_incomplete", sources.checksums.incomplete});
  values.push_back({"checksums_different", sources.checksums.different});
  values.push_back({"push_pull_workers_gone", sources.workers_gone});
  if (sources.service) {
    values.push_back({"summation_rounds", sources.service->rounds});
    values.push_back({"summation_late_pushes", sources.service->late_pushes});
  }
  const std::lock_guard lock(mutex_);
  values_ = std::move(values);
}

std::vector<CounterValue> CounterSnapshot::values() const {
  const std::lock_guard lock(mutex_);
  return values_;
}

}  // namespace mlt::engine
