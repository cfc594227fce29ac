// A loop that no thread drives: the test itself ends what is waited for.
#pragma once

#include "engine/driving.h"

namespace mlt::engine_test {

struct StillLoop final : engine::DrivenLoop {
  bool step(bool) override { return false; }
  bool run_posts() override { return false; }
  base::TimeNs next_timeout() const override { return base::kNever; }
  bool datagrams_may_wait(base::TimeNs) const override { return false; }
  Descriptors descriptors() const override { return {}; }
  bool prepare_to_wait() override { return true; }
  bool has_posts() const override { return false; }
  bool has_operations() const override { return false; }
};

}  // namespace mlt::engine_test
