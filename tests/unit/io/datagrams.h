// Test fixtures shared by the unit and backend tests of src/io: runs with known content, and a sink that checks it.
#pragma once

#include <doctest/doctest.h>
#include <poll.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/datagram.h"
#include "base/prng.h"
#include "io/datapath.h"
#include "io/os/clock.h"

namespace mlt::io_test {

inline constexpr std::size_t kHeaderBytes = 12;  // number, size, checksum of the rest
// First header byte of a datagram that faults must not hit.
inline constexpr std::uint32_t kExemptFrom = 0x80000000U;

// A run of datagrams that each start with their number and can be checked alone: header slice, then payload slice.
class TestRun {
 public:
  // `count` datagrams numbered from `first`, each `bytes` long (header included) but the last, which has `last_bytes`.
  TestRun(std::uint16_t peer, std::uint32_t first, std::uint32_t count, std::uint32_t bytes, std::uint32_t last_bytes)
      : run_(std::make_unique<base::DatagramRun>()) {
    run_->peer = peer;
    run_->datagram_count = count;
    run_->datagram_bytes = bytes;
    storage_.reserve(count);
    for (std::uint32_t i = 0; i < count; ++i) {
      storage_.push_back(content(first + i, i + 1 == count ? last_bytes : bytes));
      const std::vector<std::byte>& datagram = storage_.back();
      run_->slices[run_->slice_count++] = {datagram.data(), kHeaderBytes};
      if (datagram.size() > kHeaderBytes) {
        run_->slices[run_->slice_count++] = {datagram.data() + kHeaderBytes, datagram.size() - kHeaderBytes};
      }
      run_->total_bytes += static_cast<std::uint32_t>(datagram.size());
    }
  }
  TestRun(std::uint16_t peer, std::uint32_t first, std::uint32_t count, std::uint32_t bytes)
      : TestRun(peer, first, count, bytes, bytes) {}

  base::DatagramRun& get() { return *run_; }
  const base::DatagramRun& get() const { return *run_; }

  static std::vector<std::byte> content(std::uint32_t number, std::uint32_t bytes) {
    REQUIRE(bytes >= kHeaderBytes);
    std::vector<std::byte> datagram(bytes);
    base::store_le32(datagram.data(), number);
    base::store_le32(datagram.data() + 4, bytes);
    base::Prng prng(number);
    for (std::size_t i = kHeaderBytes; i < bytes; ++i) datagram[i] = static_cast<std::byte>(prng.next());
    base::store_le32(datagram.data() + 8, checksum(datagram));
    return datagram;
  }

  static std::uint32_t checksum(std::span<const std::byte> datagram) {
    std::uint32_t sum = base::load_le32(datagram.data()) * 2654435761U + base::load_le32(datagram.data() + 4);
    for (std::size_t i = kHeaderBytes; i < datagram.size(); ++i) {
      sum = (sum ^ static_cast<std::uint32_t>(datagram[i])) * 16777619U;
    }
    return sum;
  }

 private:
  std::unique_ptr<base::DatagramRun> run_;
  std::vector<std::vector<std::byte>> storage_;
};

// Keeps what arrived, datagram by datagram.
class CollectingSink final : public io::ReceiveSink {
 public:
  struct Datagram {
    std::uint32_t number = 0;
    std::uint32_t bytes = 0;
    base::Ecn ecn = base::Ecn::kNotEct;
    bool intact = false;
  };

  void on_run(const base::ReceivedRun& run) override {
    ++runs;
    REQUIRE(run.datagram_bytes > 0);
    REQUIRE(!run.bytes.empty());
    for (std::size_t at = 0; at < run.bytes.size(); at += run.datagram_bytes) {
      const auto datagram = run.bytes.subspan(at, std::min<std::size_t>(run.datagram_bytes, run.bytes.size() - at));
      Datagram seen;
      seen.bytes = static_cast<std::uint32_t>(datagram.size());
      seen.ecn = run.ecn;
      if (datagram.size() >= kHeaderBytes) {
        seen.number = base::load_le32(datagram.data());
        seen.intact = base::load_le32(datagram.data() + 4) == datagram.size() &&
                      base::load_le32(datagram.data() + 8) == TestRun::checksum(datagram);
      }
      datagrams.push_back(seen);
    }
  }

  std::vector<std::uint32_t> numbers() const {
    std::vector<std::uint32_t> result;
    for (const Datagram& datagram : datagrams) result.push_back(datagram.number);
    return result;
  }

  std::vector<Datagram> datagrams;
  std::size_t runs = 0;
};

// Receives until `sink` holds `count` datagrams, or nothing came for a second of real time.
inline void receive_until(io::Datapath& datapath, CollectingSink& sink, std::size_t count) {
  const base::TimeNs deadline = io::monotonic_now() + base::kSecond;
  while (sink.datagrams.size() < count) {
    const base::TimeNs now = io::monotonic_now();
    if (datapath.receive(now, 16, sink) > 0) continue;
    if (now > deadline) return;
    if (datapath.readable_fd() >= 0) {
      pollfd ready{datapath.readable_fd(), POLLIN, 0};
      ::poll(&ready, 1, 1);
    }
  }
}

}  // namespace mlt::io_test
