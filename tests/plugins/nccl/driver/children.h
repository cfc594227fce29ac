// Processes of a test. The plugin reads the environment once per process, and engines do not survive a fork: a test
// process forks before it loads a plugin, and never loads one itself.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "net.h"

namespace driver {

using Environment = std::vector<std::pair<std::string, std::string>>;

// Both ends of a pair of sockets, to exchange handles and to say how far a process is.
class Channel {
 public:
  Channel();
  ~Channel();
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;
  void use(int end);  // in a child, 0 or 1: closes the other end
  void write(const std::vector<char>& bytes) const;
  std::vector<char> read(std::size_t bytes) const;  // waits; fails if the other process ended
  void signal() const { write({'x'}); }
  void wait() const { read(1); }

 private:
  int ends_[2];
  int end_ = 0;
};

// Leaves no MLT_ and NCCL_ variables but MLT_HOST, which is loopback.
void clear_environment();
// Runs `body` in a process with these variables after clear_environment().
pid_t start(const Environment& environment, const std::function<void()>& body);
// Whether it ended by itself and found no failure.
bool succeeded(pid_t child);
// start() and succeeded().
bool run(const Environment& environment, const std::function<void()>& body);

}  // namespace driver
