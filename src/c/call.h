// What every call of the C API shares: no exception leaves it, the thread's last error, and structures that grow.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <exception>
#include <new>
#include <string>

#include "mlt.h"
#include "mlt_c.h"

namespace mlt::c {

inline int code_of(ErrorCode code) { return static_cast<int>(code) + 1; }

// Keeps it for mlt_error_text(), cut to the memory there is; returns `code`. Allocates nothing.
int failed(int code, const char* text, int peer = -1) noexcept;

// Runs the body of a call.
template <typename Body>
int call(Body&& body) noexcept {
  try {
    body();
    return MLT_OK;
  } catch (const Error& error) {
    return failed(code_of(error.code()), error.what(), error.peer());
  } catch (const std::bad_alloc&) {
    return failed(MLT_ERROR_NO_MEMORY, "no memory");
  } catch (const std::exception& error) {
    return failed(MLT_ERROR_INTERNAL, error.what());
  } catch (...) {
    return failed(MLT_ERROR_INTERNAL, "an exception of an unknown type");
  }
}

[[noreturn]] inline void reject(const std::string& text) { throw Error(ErrorCode::kConfig, text); }

inline void check(bool is_valid, const char* function, const char* what) {
  if (!is_valid) reject(std::string(function) + ": " + what);
}

// Bytes of each structure in the first release, which are what every caller has.
template <typename Struct>
inline constexpr std::size_t kFirstBytes = sizeof(Struct);

// Copies what caller and library both know; what only the library knows stays 0. Rejects what only the caller knows,
// unless it is 0.
template <typename Struct>
Struct read(const Struct* given, const char* function, const char* name) {
  check(given != nullptr, function, (std::string(name) + " is NULL").c_str());
  std::size_t size = 0;
  std::memcpy(&size, given, sizeof size);
  const auto* bytes = reinterpret_cast<const unsigned char*>(given);
  if (size < kFirstBytes<Struct>) {
    reject(std::string(function) + ": the size of " + name + " is " + std::to_string(size) +
           "; set it to sizeof of the structure, which is " + std::to_string(kFirstBytes<Struct>) + " or more");
  }
  for (std::size_t i = sizeof(Struct); i < size; ++i) {
    if (bytes[i] != 0) {
      reject(std::string(function) + ": " + name + " has an option at byte " + std::to_string(i) +
             " that this library is too old for: set it to 0, or install a library as new as the program's mlt_c.h");
    }
  }
  Struct known{};
  std::memcpy(&known, given, std::min(size, sizeof known));
  return known;
}

}  // namespace mlt::c
