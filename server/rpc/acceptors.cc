#include "server/rpc/acceptors.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pwd.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/server_posix.h>

#include "base/monotonic_clock.h"
#include "base/status_macros.h"
#include "server/process/log.h"
#include "server/process/socket.h"

namespace eplb {

bool IsServed(const std::string& unix_path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (unix_path.size() >= sizeof(address.sun_path)) return false;
  unix_path.copy(address.sun_path, unix_path.size());
  const int descriptor = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (descriptor < 0) return false;
  const bool served =
      connect(descriptor, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 ||
      errno == EAGAIN;  // its backlog is full
  (void)close(descriptor);
  return served;
}

absl::Status CheckSocketPath(const std::string& path) {
  const auto no = [&path](const std::string& why) {
    return absl::UnavailableError(absl::StrCat("cannot listen on unix:", path, ": ", why));
  };
  struct stat info = {};
  if (lstat(path.c_str(), &info) != 0) {
    return errno == ENOENT ? absl::OkStatus() : no(std::strerror(errno));
  }
  if (!S_ISSOCK(info.st_mode)) return no("it is there and is no socket");
  return IsServed(path) ? no("another process serves there") : absl::OkStatus();
}

absl::StatusOr<FileLock> ClaimSocket(const std::string& path) {
  EPLB_RETURN_IF_ERROR(ParseAddress(absl::StrCat("unix:", path)).status());
  EPLB_ASSIGN_OR_RETURN(FileLock lock, FileLock::Acquire(path, "listens there"));
  EPLB_RETURN_IF_ERROR(CheckSocketPath(path));
  return lock;
}

namespace {

constexpr int kMaxAccepts = 1024;  // in one turn
// After an accept that failed for want of descriptors or memory.
constexpr absl::Duration kAcceptPause = absl::Milliseconds(100);
constexpr absl::Duration kLogPeriod = absl::Minutes(1);

// The connection under the lowest free number.
Descriptor Lowered(const Descriptor& connection) {
  return Descriptor(fcntl(connection.get(), F_DUPFD_CLOEXEC, 0));
}

}  // namespace

ConnectionAcceptor::ConnectionAcceptor(Descriptor listener, Options options)
    : listener_(std::move(listener)),
      stop_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      options_(std::move(options)) {}

ConnectionAcceptor::~ConnectionAcceptor() { Stop(); }

void ConnectionAcceptor::Start() {
  thread_ = std::thread([this] { Loop(); });
}

void ConnectionAcceptor::Stop() {
  const uint64_t one = 1;
  (void)!write(stop_.get(), &one, sizeof(one));
  if (thread_.joinable()) thread_.join();
  waiting_.clear();
  listener_ = Descriptor();
}

void ConnectionAcceptor::Loop() {
  for (;;) {
    const absl::Time before = MonotonicNow();
    std::vector<pollfd> polled = {
        {.fd = stop_.get(), .events = POLLIN, .revents = 0},
        {.fd = before < accept_from_ ? -1 : listener_.get(), .events = POLLIN, .revents = 0}};
    for (const Silent& one : waiting_) {
      polled.push_back({.fd = one.descriptor.get(), .events = POLLIN, .revents = 0});
    }
    // The oldest connection ends first.
    absl::Duration left = waiting_.empty() ? kLogPeriod : waiting_.front().give_up - before;
    if (polled[1].fd < 0) left = std::min(left, kAcceptPause);
    const int64_t timeout = std::max<int64_t>(0, absl::ToInt64Milliseconds(left) + 1);
    (void)poll(polled.data(), polled.size(), static_cast<int>(timeout));
    if (polled[0].revents != 0) return;
    const absl::Time now = MonotonicNow();
    ServeSpeaking(polled);
    DropLate(now);
    if (polled[1].revents != 0) AcceptWaiting(now);
    LogClosed(now);
  }
}

void ConnectionAcceptor::ServeSpeaking(const std::vector<pollfd>& polled) {
  auto one = waiting_.begin();
  for (size_t i = 2; i < polled.size(); ++i) {
    if (polled[i].revents == 0) {
      ++one;
      continue;
    }
    char first = 0;
    const ssize_t got = recv(one->descriptor.get(), &first, 1, MSG_PEEK | MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
      ++one;
      continue;
    }
    if (got > 0) options_.serve(std::move(one->descriptor));
    one = waiting_.erase(one);
  }
}

void ConnectionAcceptor::DropLate(absl::Time now) {
  while (!waiting_.empty() && now >= waiting_.front().give_up) {
    ++silent_too_long_;
    waiting_.pop_front();
  }
}

Descriptor ConnectionAcceptor::Fit(Descriptor accepted) {
  const bool fits = accepted.get() < options_.descriptors_below;
  if (fits && waiting_.size() < kMaxSilent) return accepted;
  ++crowded_;
  if (waiting_.empty()) return {};
  waiting_.pop_front();
  if (fits) return accepted;
  Descriptor lowered = Lowered(accepted);
  if (lowered.get() >= options_.descriptors_below) return {};
  return lowered;
}

void ConnectionAcceptor::AcceptWaiting(absl::Time now) {
  for (int i = 0; i < kMaxAccepts; ++i) {
    Descriptor accepted(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (accepted.get() < 0) {
      if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED) return;
      // The connection stays in the backlog, and poll would not wait.
      ++crowded_;
      accept_from_ = now + kAcceptPause;
      if (!waiting_.empty()) waiting_.pop_front();
      return;
    }
    Descriptor connection = Fit(std::move(accepted));
    if (connection.get() < 0) continue;
    waiting_.push_back({.descriptor = std::move(connection), .give_up = now + options_.silence});
  }
}

void ConnectionAcceptor::LogClosed(absl::Time now) {
  const int64_t closed = crowded_ + silent_too_long_;
  if (closed == logged_ || now < log_from_) return;
  Log(LogLevel::kWarn, "connections_closed",
      {{"address", options_.address},
       {"since_last_line", closed - logged_},
       {"crowded_in_all", crowded_.load()},
       {"silent_in_all", silent_too_long_.load()},
       {"reason", absl::StrCat("connections were more than the limit of open files has room for, "
                               "or sent nothing within ",
                               absl::FormatDuration(options_.silence))}});
  logged_ = closed;
  log_from_ = now + kLogPeriod;
}

namespace {

constexpr int kUnixBacklog = 1024;
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

// What gRPC's own listener sets.
void HandToGrpc(Descriptor connection, grpc::experimental::ExternalConnectionAcceptor& door) {
  const int yes = 1;
  const unsigned int unanswered_ms = kUnansweredMs;
  (void)setsockopt(connection.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
  (void)setsockopt(connection.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, &unanswered_ms,
                   sizeof(unanswered_ms));
  grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters parameters;
  parameters.fd = connection.Release();
  door.HandleNewConnection(&parameters);
}

}  // namespace eplb
