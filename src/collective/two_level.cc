#include "collective/two_level.h"

#include <utility>
#include <vector>

#include "collective/staged.h"
#include "collective/stages.h"

namespace mlt::collective {

namespace {

using Parts = std::vector<std::span<std::byte>>;

Parts cut_parts(std::span<std::byte> whole, std::uint32_t count, std::size_t bytes) {
  Parts parts;
  for (std::uint32_t i = 0; i < count; ++i) parts.push_back(whole.subspan(i * bytes, bytes));
  return parts;
}

// For spans that are only read: a stage has one type for both.
std::span<std::byte> writable(std::span<const std::byte> bytes) {
  return {const_cast<std::byte*>(bytes.data()), bytes.size()};
}

}  // namespace

std::unique_ptr<Collective> make_two_level_all_gather(const CollectiveRequest& request, const Membership& group) {
  const std::size_t bytes = request.input.size();
  const Parts parts =
      request.output_parts.empty() ? cut_parts(request.output, group.size(), bytes) : request.output_parts;
  Staged::Local local;
  local.first.push_back({request.input, parts[group.own]});
  return std::make_unique<Staged>(group, bytes, request.element, Reduction::kSum,
                                  two_level_gather_stages(group.size(), group.own, request.ranks_per_host, parts,
                                                          wire::element_bytes(request.element)),
                                  std::move(local));
}

std::unique_ptr<Collective> make_two_level_reduce_scatter(const CollectiveRequest& request, const Membership& group) {
  const std::size_t bytes = request.output.size();
  const std::uint32_t each = request.ranks_per_host, hosts = group.size() / each;
  Parts parts;
  if (request.input_parts.empty()) parts = cut_parts(writable(request.input), group.size(), bytes);
  for (const std::span<const std::byte> part : request.input_parts) parts.push_back(writable(part));
  Staged::Local local;
  local.memory = std::make_unique_for_overwrite<std::byte[]>(hosts * bytes);
  const Parts sums = cut_parts({local.memory.get(), hosts * bytes}, hosts, bytes);
  for (std::uint32_t host = 0; host < hosts; ++host) {
    local.first.push_back({parts[host * each + group.own % each], sums[host]});
  }
  local.last.push_back({sums[group.own / each], request.output});
  return std::make_unique<Staged>(
      group, bytes, request.element, request.reduction,
      two_level_scatter_stages(group.size(), group.own, each, parts, sums, wire::element_bytes(request.element)),
      std::move(local));
}

}  // namespace mlt::collective
