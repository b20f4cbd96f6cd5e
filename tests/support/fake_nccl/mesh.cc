#include "tests/support/fake_nccl/mesh.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace eplb::fake_nccl {
namespace {

constexpr int kRetryMs = 2;  // a rank that is not there yet is asked again after so long

struct Address {
  sockaddr_un address = {};
  socklen_t length = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
};

// In the abstract name space: nothing to delete, and gone with its owner.
Address Named(const std::string& name) {
  Address result;
  result.address.sun_family = AF_UNIX;
  std::copy(name.begin(), name.end(), result.address.sun_path + 1);
  result.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return result;
}

std::string ListenerName(const std::string& id, int32_t rank) {
  return "eplb-fake-nccl-" + id + "-" + std::to_string(rank);
}

// The rank comes last, so that who accepts reads it from the peer's name.
std::string CallerName(const std::string& id, int32_t to, int32_t rank) {
  return ListenerName(id, to) + "-from-" + std::to_string(rank);
}

// A socket with a name of its own; not open when the system refuses.
Descriptor BoundSocket(const std::string& name) {
  Descriptor bound(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const Address own = Named(name);
  if (!bound.open() || bind(bound.get(), own.get(), own.length) != 0) return Descriptor();
  return bound;
}

bool Stopped(int stop, int listener) {
  std::array<pollfd, 2> ready = {{{.fd = stop, .events = POLLIN, .revents = 0},
                                  {.fd = listener, .events = POLLIN, .revents = 0}}};
  return poll(ready.data(), ready.size(), kRetryMs) > 0 && ready[0].revents != 0;
}

// Takes the calls that have come.
void Accept(int listener, std::vector<Descriptor>& peers) {
  for (;;) {
    Address peer;
    peer.length = sizeof(peer.address);
    Descriptor accepted(accept4(listener, reinterpret_cast<sockaddr*>(&peer.address), &peer.length,
                                SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!accepted.open()) return;
    const std::string name(peer.address.sun_path + 1,
                           peer.length - offsetof(sockaddr_un, sun_path) - 1);
    const auto rank = static_cast<size_t>(std::atoi(name.c_str() + name.rfind('-') + 1));
    if (rank < peers.size()) peers[rank] = std::move(accepted);
  }
}

}  // namespace

Descriptor::Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

Descriptor::~Descriptor() {
  if (fd_ >= 0) close(fd_);
}

std::vector<Descriptor> ConnectMesh(const MeshAddress& address, int stop, std::string* error) {
  const auto num_ranks = static_cast<size_t>(address.num_ranks);
  const auto rank = static_cast<size_t>(address.rank);
  std::vector<Descriptor> peers(num_ranks);
  std::vector<Descriptor> callers(rank);  // to the lower ranks, while they are not there
  const Descriptor listener = BoundSocket(ListenerName(address.id, address.rank));
  bool refused = !listener.open() || listen(listener.get(), address.num_ranks) != 0;
  for (size_t lower = 0; lower < rank && !refused; ++lower) {
    callers[lower] = BoundSocket(CallerName(address.id, static_cast<int32_t>(lower), address.rank));
    refused = !callers[lower].open();
  }
  if (refused) {
    *error = "rank " + std::to_string(address.rank) + " cannot listen: " + std::strerror(errno);
    return {};
  }
  for (;;) {
    Accept(listener.get(), peers);
    for (size_t lower = 0; lower < rank; ++lower) {
      if (!callers[lower].open()) continue;
      const Address peer = Named(ListenerName(address.id, static_cast<int32_t>(lower)));
      if (connect(callers[lower].get(), peer.get(), peer.length) == 0) {
        peers[lower] = std::move(callers[lower]);
      }
    }
    const auto missing =
        std::ranges::count_if(peers, [](const Descriptor& peer) { return !peer.open(); });
    if (missing == 1) return peers;  // the own
    if (Stopped(stop, listener.get())) return {};
  }
}

}  // namespace eplb::fake_nccl
