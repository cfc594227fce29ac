#include "children.h"

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

namespace driver {

Channel::Channel() { MUST(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends_) == 0); }

Channel::~Channel() {
  for (const int end : ends_) ::close(end);
}

void Channel::use(int end) {
  end_ = end;
  ::close(ends_[1 - end]);
  ends_[1 - end] = -1;
}

void Channel::write(const std::vector<char>& bytes) const {
  MUST(::send(ends_[end_], bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size()));
}

std::vector<char> Channel::read(std::size_t bytes) const {
  std::vector<char> got(bytes);
  MUST(::recv(ends_[end_], got.data(), bytes, MSG_WAITALL) == static_cast<ssize_t>(bytes));
  return got;
}

void clear_environment() {
  std::vector<std::string> names{"MASTER_ADDR"};
  for (char** one = environ; *one != nullptr; ++one) {
    const std::string line = *one;
    if (line.starts_with("MLT_") || line.starts_with("NCCL_")) names.push_back(line.substr(0, line.find('=')));
  }
  for (const std::string& name : names) ::unsetenv(name.c_str());
  ::setenv("MLT_HOST", "127.0.0.1", 1);
}

pid_t start(const Environment& environment, const std::function<void()>& body) {
  std::fflush(stdout);
  const pid_t child = ::fork();
  MUST(child >= 0);
  if (child > 0) return child;
  clear_environment();
  for (const auto& [name, value] : environment) ::setenv(name.c_str(), value.c_str(), 1);
  body();
  std::fflush(stdout);
  ::_exit(0);
}

bool succeeded(pid_t child) {
  int status = 0;
  MUST(::waitpid(child, &status, 0) == child);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

bool run(const Environment& environment, const std::function<void()>& body) {
  return succeeded(start(environment, body));
}

}  // namespace driver
