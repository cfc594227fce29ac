#include "bindings/process_exit.h"

#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <utility>
#include <vector>

namespace mlt::bindings {

#ifdef __GLIBC__

namespace {

// A program that embeds Python may continue after the interpreter's end.
constexpr std::int64_t kMaxExitNs = 30'000'000'000;

// On the thread that ends the interpreter, and then on the one that ends the process. Never destroyed: an engine may
// hold references to Python objects, and no interpreter is left to take them back.
std::vector<std::shared_ptr<Engine>>& exiting_engines() {
  static auto* const engines = new std::vector<std::shared_ptr<Engine>>;
  return *engines;
}

void on_exit_status(int argument, void* /*unused*/) {
  const int status = argument & 0xFF;  // what the system keeps of it: exit(256) ends with status 0
  for (const auto& engine : exiting_engines()) engine->set_exit_status(status);  // all first: then they leave at once
  for (const auto& engine : exiting_engines()) engine->close();
}

}  // namespace

void close_at_exit(std::shared_ptr<Engine> engine) {
  static const int registered = ::on_exit(on_exit_status, nullptr);
  if (registered != 0) return engine->close();
  engine->close_before_exit(kMaxExitNs);
  exiting_engines().push_back(std::move(engine));
}

#else

void close_at_exit(std::shared_ptr<Engine> engine) { engine->close(); }

#endif

}  // namespace mlt::bindings
