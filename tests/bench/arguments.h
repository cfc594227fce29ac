// The arguments of a measuring program: positive numbers, each with a default.
#pragma once

#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace mlt::bench {

class Arguments {
 public:
  // `usage`: what the arguments are, as in "[operations] [ranks ...]".
  Arguments(int argc, char** argv, const char* usage) : count_(argc), values_(argv), usage_(usage) {}

  int count() const { return count_ - 1; }

  // Argument `index`, from 1 on. Ends the program with status 2, and the usage, if it is no number of at least `min`.
  template <typename Number>
  Number number(int index, Number otherwise, Number min = 1) const {
    if (index >= count_) return otherwise;
    const char* const begin = values_[index];
    const char* const end = begin + std::strlen(begin);
    Number value{};
    const auto [rest, error] = std::from_chars(begin, end, value);
    if (error != std::errc{} || rest != end || !(value >= min)) fail(begin);
    return value;
  }

 private:
  [[noreturn]] void fail(const char* argument) const {
    const bool asks = std::strcmp(argument, "-h") == 0 || std::strcmp(argument, "--help") == 0;
    if (!asks) std::fprintf(stderr, "error: '%s' is too small, or no number\n", argument);
    std::fprintf(asks ? stdout : stderr, "usage: %s %s\n", values_[0], usage_);
    std::exit(asks ? 0 : 2);
  }

  int count_;
  char** values_;
  const char* usage_;
};

}  // namespace mlt::bench
