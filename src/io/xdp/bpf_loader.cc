#include "io/xdp/bpf_loader.h"

#include <linux/if_link.h>
#include <linux/rtnetlink.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

namespace mlt::io {

namespace {

int bpf(int command, bpf_attr& attributes) {
  return static_cast<int>(::syscall(SYS_bpf, command, &attributes, sizeof attributes));
}

std::uint64_t address_of(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }

std::uint32_t mode_flag(XdpMode mode) { return mode == XdpMode::kNative ? XDP_FLAGS_DRV_MODE : XDP_FLAGS_SKB_MODE; }

// Sets the interface's program; -1 removes it. Returns 0 or an errno.
int set_by_netlink(Netlink& netlink, int program, unsigned interface, XdpMode mode) {
  ifinfomsg header{};
  header.ifi_index = static_cast<int>(interface);
  NetlinkMessage message(RTM_SETLINK, NLM_F_ACK, header);
  const std::size_t nest = message.begin_nest(IFLA_XDP);
  message.attribute(IFLA_XDP_FD, program);
  message.attribute(IFLA_XDP_FLAGS, mode_flag(mode) | (program >= 0 ? XDP_FLAGS_UPDATE_IF_NOEXIST : 0U));
  message.end_nest(nest);
  std::span<const std::byte> answer;
  return netlink.request(message, answer);
}

}  // namespace

OsError xdp_error(int number, std::string_view action, std::string_view object) {
  OsError error = os_error(number, action, object);
  const std::string what = "cannot " + std::string(action) + (object.empty() ? "" : " " + std::string(object)) + ": " +
                           errno_text(number) + ". ";
  if (error.code == OsErrorCode::kPermission) {
    error.text = what +
                 "AF_XDP needs CAP_NET_RAW to open its socket, and CAP_BPF and CAP_NET_ADMIN to load and attach its "
                 "program: run as root or grant them (`setcap`, or the container's cap_add), or use the kernel's UDP "
                 "(datapath=\"udp\", MLT_DATAPATH=udp), which needs no privilege.";
  } else if (number == EBUSY || number == EEXIST) {
    error.text =
        what +
        "An interface has one XDP program, and a receive queue one AF_XDP socket. This one is in use by another "
        "rank on this host, or another program (`ip link show`, `bpftool net`). Use the kernel's UDP "
        "there (datapath=\"udp\"), or detach the other program (`ip link set dev ... xdp off`).";
  } else if (number == ENOBUFS || number == ENOMEM) {
    error.text = what +
                 "Packet memory is pinned: raise the limit (`ulimit -l unlimited`), or run with "
                 "CAP_IPC_LOCK.";
  } else if (number == EAFNOSUPPORT || number == EPROTONOSUPPORT || number == ENOSYS) {
    error.text = what + "This kernel was built without AF_XDP (CONFIG_XDP_SOCKETS) or BPF: use datapath=\"udp\".";
  }
  return error;
}

UniqueFd create_socket_map(std::uint32_t queues, OsError& error) {
  bpf_attr attributes{};
  attributes.map_type = BPF_MAP_TYPE_XSKMAP;
  attributes.key_size = sizeof(std::uint32_t);
  attributes.value_size = sizeof(std::uint32_t);
  attributes.max_entries = queues;
  std::strncpy(attributes.map_name, "mlt_sockets", sizeof attributes.map_name - 1);
  UniqueFd map(bpf(BPF_MAP_CREATE, attributes));
  if (!map) error = xdp_error(errno, "create the table of", "AF_XDP sockets");
  return map;
}

bool put_socket(int map, std::uint32_t queue, int socket, OsError& error) {
  bpf_attr attributes{};
  attributes.map_fd = static_cast<std::uint32_t>(map);
  attributes.key = address_of(&queue);
  attributes.value = address_of(&socket);
  if (bpf(BPF_MAP_UPDATE_ELEM, attributes) == 0) return true;
  error = xdp_error(errno, "steer packets to the AF_XDP socket of receive queue", std::to_string(queue));
  return false;
}

UniqueFd load_xdp_program(std::span<const bpf_insn> instructions, OsError& error) {
  static constexpr char kLicense[] = "Apache-2.0";
  std::array<char, 4'096> log{};
  bpf_attr attributes{};
  attributes.prog_type = BPF_PROG_TYPE_XDP;
  attributes.expected_attach_type = BPF_XDP;
  attributes.insn_cnt = static_cast<std::uint32_t>(instructions.size());
  attributes.insns = address_of(instructions.data());
  attributes.license = address_of(kLicense);
  std::strncpy(attributes.prog_name, "mlt_steer", sizeof attributes.prog_name - 1);
  UniqueFd program(bpf(BPF_PROG_LOAD, attributes));
  if (program) return program;
  const int number = errno;
  error = xdp_error(number, "load the program that steers packets to", "AF_XDP");
  if (error.code == OsErrorCode::kPermission) return program;
  // Again, for the verifier's log.
  attributes.log_level = 1;
  attributes.log_size = static_cast<std::uint32_t>(log.size());
  attributes.log_buf = address_of(log.data());
  program = UniqueFd(bpf(BPF_PROG_LOAD, attributes));
  if (!program) error.text += std::string(" The verifier reports: ") + log.data();
  return program;
}

std::unique_ptr<XdpAttachment> XdpAttachment::attach(int program, unsigned interface, const std::string& interface_name,
                                                     XdpMode mode, Way way, OsError& error) {
  std::unique_ptr<XdpAttachment> attachment(new XdpAttachment);
  attachment->mode_ = mode;
  attachment->interface_ = interface;
  int number = 0;
  if (way == Way::kLink) {
    bpf_attr attributes{};
    attributes.link_create.prog_fd = static_cast<std::uint32_t>(program);
    attributes.link_create.target_ifindex = interface;
    attributes.link_create.attach_type = BPF_XDP;
    attributes.link_create.flags = mode_flag(mode);
    attachment->link_ = UniqueFd(bpf(BPF_LINK_CREATE, attributes));
    number = attachment->link_ ? 0 : errno;
  } else {
    auto netlink = Netlink::open(error);
    if (!netlink) return nullptr;
    number = set_by_netlink(*netlink, program, interface, mode);
    if (number == 0) attachment->netlink_ = std::move(netlink);
  }
  if (number == 0) return attachment;
  const bool native = mode == XdpMode::kNative;
  error = xdp_error(number, native ? "attach the steering program to the driver of" : "attach the steering program to",
                    interface_name);
  return nullptr;
}

XdpAttachment::~XdpAttachment() {
  if (netlink_) set_by_netlink(*netlink_, -1, interface_, mode_);
}

void XdpAttachment::let_go() {
  link_.reset();
  netlink_.reset();
}

}  // namespace mlt::io
