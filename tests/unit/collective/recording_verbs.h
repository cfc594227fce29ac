// Verbs without a network: records posts, cancels, messages and notices, and answers posts as a test wants.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "collective/messages.h"
#include "collective/verbs.h"

namespace mlt::test {

class RecordingVerbs final : public collective::Verbs {
 public:
  mlt::core::PostStatus post_send(base::TimeNs, const core::SendRequest& request) override {
    if (send_status == core::PostStatus::kPosted) sends.push_back(request);
    return send_status;
  }
  mlt::core::PostStatus post_recv(base::TimeNs, const core::ReceiveRequest& request) override {
    if (receive_status == core::PostStatus::kPosted) receives.push_back(request);
    return receive_status;
  }
  void cancel(base::TimeNs, core::OperationId operation, core::CompletionKind kind) override {
    cancelled.emplace_back(operation, kind);
  }
  bool send_message(std::uint16_t to, std::span<const std::byte> bytes) override {
    if (!is_connected) return false;
    last = collective::decode(bytes).value();
    sent.emplace_back(to, last);
    return true;
  }
  std::uint32_t segment_bytes(std::uint16_t peer) const override {
    const auto found = grids.find(peer);
    return found == grids.end() ? 1'432 : found->second;
  }
  std::string peer_error(std::uint16_t peer) const override {
    const auto found = errors.find(peer);
    return found == errors.end() ? std::string() : found->second;
  }
  void notice(const std::string& text) override { notices.push_back(text); }

  core::PostStatus send_status = core::PostStatus::kPosted;
  core::PostStatus receive_status = core::PostStatus::kPosted;
  bool is_connected = true;
  std::map<std::uint16_t, std::string> errors;   // by peer
  std::map<std::uint16_t, std::uint32_t> grids;  // segment bytes by peer, where not 1,432
  std::vector<core::SendRequest> sends;
  std::vector<core::ReceiveRequest> receives;
  std::vector<std::pair<core::OperationId, core::CompletionKind>> cancelled;
  collective::Message last;
  std::vector<std::pair<std::uint16_t, collective::Message>> sent;  // receiver and message
  std::vector<std::string> notices;
};

}  // namespace mlt::test
