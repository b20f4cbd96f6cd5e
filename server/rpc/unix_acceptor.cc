// Binds the socket, and notes the user of each connection under the number of its descriptor.
#include "server/rpc/unix_acceptor.h"

#include <fcntl.h>
#include <pwd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include <grpcpp/server.h>
#include <grpcpp/server_posix.h>

#include "base/errors.h"

namespace eplb {

namespace {

constexpr int kUnixBacklog = 1024;
constexpr size_t kUserRecordBytes = 16384;
// Numbers that connections get, one after the other and then from the first again. They lie in the
// usual limit of 1024 descriptors, above what the daemon itself has open.
constexpr int kFirstNumber = 256;
constexpr int kNumNumbers = 512;

absl::Status NotListening(const std::string& path) {
  return Unavailable("cannot listen on unix:", path, ": ", std::strerror(errno));
}

// Moves a descriptor to the next of the numbers. gRPC tells a call only the number of its
// connection: were that reused at once, a call of a connection that has just ended could be taken
// for one of the connection after it.
Descriptor Renumbered(Descriptor descriptor, int connection, int32_t below) {
  Descriptor number(
      fcntl(descriptor.get(), F_DUPFD_CLOEXEC, kFirstNumber + connection % kNumNumbers));
  return number.get() < 0 || number.get() >= below ? std::move(descriptor) : std::move(number);
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
                                                                   Options options) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    errno = ENAMETOOLONG;
    return NotListening(path);
  }
  path.copy(address.sun_path, path.size());
  Descriptor listener(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (listener.get() < 0) return NotListening(path);
  (void)unlink(path.c_str());
  if (bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
      listen(listener.get(), kUnixBacklog) != 0) {
    return NotListening(path);
  }
  return std::unique_ptr<UnixAcceptor>(new UnixAcceptor(path, std::move(listener), options));
}

UnixAcceptor::UnixAcceptor(std::string path, Descriptor listener, Options options)
    : path_(std::move(path)),
      options_(options),
      acceptor_(std::move(listener), {.address = absl::StrCat("unix:", path_),
                                      .descriptors_below = options_.descriptors_below,
                                      .silence = options_.silence,
                                      .serve = [this](Descriptor one) { Hand(std::move(one)); }}) {}

UnixAcceptor::~UnixAcceptor() { Stop(); }

void UnixAcceptor::Stop() {
  if (stopped_) return;
  stopped_ = true;
  // Before the listener is closed: a daemon that finds the path served does not take it.
  (void)unlink(path_.c_str());
  acceptor_.Stop();
}

void UnixAcceptor::Serve(grpc::Server* server) {
  server_ = server;
  acceptor_.Start();
}

void UnixAcceptor::Hand(Descriptor connection) {
  ucred user{};
  socklen_t size = sizeof(user);
  if (getsockopt(connection.get(), SOL_SOCKET, SO_PEERCRED, &user, &size) != 0) return;
  Descriptor numbered =
      Renumbered(std::move(connection), connections_++, options_.descriptors_below);
  options_.peers->Note(numbered.get(), user.uid);
  grpc::AddInsecureChannelFromFd(server_, numbered.Release());
}

}  // namespace eplb
