#include "server/rpc/unix_acceptor.h"

#include <fcntl.h>
#include <poll.h>
#include <pwd.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include <grpcpp/server.h>
#include <grpcpp/server_posix.h>

#include "server/log.h"

namespace eplb {
namespace {

constexpr int kBacklog = 1024;
constexpr int kRetryMs = 100;  // after an accept that failed for want of descriptors or memory
constexpr size_t kUserRecordBytes = 16384;
// Numbers that connections get, one after the other and then from the first again. They lie in the
// usual limit of 1024 descriptors, above what the daemon itself has open.
constexpr int kFirstNumber = 256;
constexpr int kNumNumbers = 512;

absl::Status NotListening(const std::string& path) {
  return absl::UnavailableError(
      absl::StrCat("cannot listen on unix:", path, ": ", std::strerror(errno)));
}

// Moves a descriptor to the next of the numbers. gRPC tells a call only the number of its
// connection: were that reused at once, a call of a connection that has just ended could be taken
// for one of the connection after it.
int Renumbered(int descriptor, int connection) {
  const int number = fcntl(descriptor, F_DUPFD_CLOEXEC, kFirstNumber + connection % kNumNumbers);
  if (number < 0) return descriptor;
  (void)close(descriptor);
  return number;
}

}  // namespace

void UnixPeers::Note(int descriptor, uid_t user) {
  const std::lock_guard lock(mutex_);
  users_[descriptor] = user;
}

std::optional<uid_t> UnixPeers::UserOf(std::string_view peer) const {
  if (!peer.starts_with(kAcceptedPeer)) return std::nullopt;
  int descriptor = -1;
  peer.remove_prefix(kAcceptedPeer.size());
  const auto end = peer.data() + peer.size();
  const auto [rest, error] = std::from_chars(peer.data(), end, descriptor);
  if (error != std::errc() || rest != end) return std::nullopt;
  const std::lock_guard lock(mutex_);
  const auto found = users_.find(descriptor);
  if (found == users_.end()) return std::nullopt;
  return found->second;
}

std::string DescribeUser(uid_t user) {
  std::string text = absl::StrCat("uid ", user);
  std::array<char, kUserRecordBytes> buffer;
  passwd entry{};
  passwd* found = nullptr;
  const int error = getpwuid_r(user, &entry, buffer.data(), buffer.size(), &found);
  if (error == 0 && found != nullptr) absl::StrAppend(&text, " (", entry.pw_name, ")");
  return text;
}

absl::StatusOr<std::unique_ptr<UnixAcceptor>> UnixAcceptor::Listen(const std::string& path,
                                                                   UnixPeers* peers) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    errno = ENAMETOOLONG;
    return NotListening(path);
  }
  path.copy(address.sun_path, path.size());
  const int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (listener < 0) return NotListening(path);
  (void)unlink(path.c_str());
  if (bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
      listen(listener, kBacklog) != 0) {
    const absl::Status status = NotListening(path);
    (void)close(listener);
    return status;
  }
  const int stop = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (stop < 0) {
    const absl::Status status = NotListening(path);
    (void)unlink(path.c_str());
    (void)close(listener);
    return status;
  }
  return std::unique_ptr<UnixAcceptor>(new UnixAcceptor(path, listener, stop, peers));
}

UnixAcceptor::UnixAcceptor(std::string path, int listener, int stop, UnixPeers* peers)
    : path_(std::move(path)), listener_(listener), stop_(stop), peers_(peers) {}

UnixAcceptor::~UnixAcceptor() {
  const uint64_t one = 1;
  (void)!write(stop_, &one, sizeof(one));
  if (thread_.joinable()) thread_.join();
  // Before the listener is closed: a daemon that finds the path served does not take it.
  (void)unlink(path_.c_str());
  (void)close(listener_);
  (void)close(stop_);
}

void UnixAcceptor::Serve(grpc::Server* server) {
  thread_ = std::thread([this, server] { Loop(server); });
}

void UnixAcceptor::Loop(grpc::Server* server) {
  for (;;) {
    std::array<pollfd, 2> waits = {{{.fd = stop_, .events = POLLIN, .revents = 0},
                                    {.fd = listener_, .events = POLLIN, .revents = 0}}};
    (void)poll(waits.data(), waits.size(), -1);
    if (waits[0].revents != 0) return;
    if (waits[1].revents != 0) AcceptOne(server);
  }
}

void UnixAcceptor::AcceptOne(grpc::Server* server) {
  const int accepted = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (accepted < 0) {
    if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED) return;
    Log(LogLevel::kWarn, "connection_not_accepted",
        {{"socket", path_}, {"reason", std::string(std::strerror(errno))}});
    pollfd stop{.fd = stop_, .events = POLLIN, .revents = 0};
    (void)poll(&stop, 1, kRetryMs);
    return;
  }
  ucred user{};
  socklen_t size = sizeof(user);
  if (getsockopt(accepted, SOL_SOCKET, SO_PEERCRED, &user, &size) != 0) {
    (void)close(accepted);
    return;
  }
  const int descriptor = Renumbered(accepted, connections_++);
  peers_->Note(descriptor, user.uid);
  grpc::AddInsecureChannelFromFd(server, descriptor);
}

}  // namespace eplb
