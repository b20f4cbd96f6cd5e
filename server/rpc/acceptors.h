// Who may connect, and as whom: TCP and Unix sockets that are accepted before gRPC reads from them.
#ifndef EPLB_SERVER_RPC_ACCEPTORS_H_
#define EPLB_SERVER_RPC_ACCEPTORS_H_

#include <poll.h>
#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "server/process/socket.h"
#include "server/store/file_lock.h"

namespace grpc {
class Server;
namespace experimental {
class ExternalConnectionAcceptor;
}
}  // namespace grpc

namespace eplb {

// Whether a Unix socket is another daemon's: of use to both that take one over, gRPC and the
// acceptor.

// True when a process accepts connections on this Unix socket. gRPC would take the path away from
// it without a word.
bool IsServed(const std::string& unix_path);

// The Unix socket that eplbd opens beside its address, for eplbctl and ranks on the same machine.

// OK when gRPC may bind `path`: nothing is there, or a socket that no process serves, which gRPC
// replaces. errors: Unavailable, saying what is there.
absl::Status CheckSocketPath(const std::string& path);

// The right to a socket's path, held until the process ends: `path`.lock. Without it two daemons
// that start at the same moment both find the path free, and the second takes it from the first.
// errors: Unavailable when another daemon holds it, the folder takes no file, the path is longer
// than the 107 bytes of sockaddr_un, or as CheckSocketPath.
absl::StatusOr<FileLock> ClaimSocket(const std::string& path);

// Accepts the connections of one listening socket and hands them to gRPC once they speak, so that
// connections never take the descriptors that the store, probes and queries need.

// A client of gRPC speaks first, with TLS and without. A connection without a byte is therefore the
// first that must go when descriptors are short; a connection that spoke is never cut.
// threads: those of one thread, but for the thread that it owns and the counters.
class ConnectionAcceptor {
 public:
  static constexpr size_t kMaxSilent = 1024;
  struct Options {
    std::string address = {};  // for the log
    // A connection's descriptor must be below this. The kernel gives out the lowest free number, so
    // a higher one says that all below are in use.
    int32_t descriptors_below = std::numeric_limits<int32_t>::max();
    absl::Duration silence = absl::Seconds(10);  // from the connection to its first byte
    // Takes over a connection; called on the acceptor's thread.
    std::function<void(Descriptor)> serve = {};
  };
  // listener: does not block.
  ConnectionAcceptor(Descriptor listener, Options options);
  // As Stop.
  ~ConnectionAcceptor();
  ConnectionAcceptor(const ConnectionAcceptor&) = delete;
  ConnectionAcceptor& operator=(const ConnectionAcceptor&) = delete;

  // Accepts from now on. Once.
  void Start();
  // Accepts no more; closes the listener and what did not speak.
  void Stop();

  // Closed because descriptors or places for silent ones were short.
  int64_t crowded() const { return crowded_; }
  // Closed because they did not speak before the deadline.
  int64_t silent() const { return silent_too_long_; }

 private:
  struct Silent {
    Descriptor descriptor;
    absl::Time give_up;
  };
  void Loop();
  void ServeSpeaking(const std::vector<pollfd>& polled);
  void DropLate(absl::Time now);
  void AcceptWaiting(absl::Time now);
  // The connection within the limits, for which the oldest silent one may be closed; else none.
  Descriptor Fit(Descriptor accepted);
  void LogClosed(absl::Time now);

  Descriptor listener_;
  const Descriptor stop_;  // an eventfd, readable once the thread must end
  const Options options_;
  std::list<Silent> waiting_;  // of the thread, oldest first; so are the next three
  absl::Time accept_from_ = absl::InfinitePast();
  absl::Time log_from_ = absl::InfinitePast();
  int64_t logged_ = 0;
  std::atomic<int64_t> crowded_ = 0;
  std::atomic<int64_t> silent_too_long_ = 0;
  std::thread thread_;
};

// A connection is dropped if what was sent on it is not acknowledged for this time: the path or the
// rank is dead.
inline constexpr int kUnansweredMs = 5000;

// Makes a TCP connection one of gRPC's, with the options that gRPC's own listener sets.
void HandToGrpc(Descriptor connection, grpc::experimental::ExternalConnectionAcceptor& door);

// The listener of a Unix socket without TLS. It accepts the connections itself and hands them to
// gRPC, because the kernel knows the user at the other end and gRPC's own listener does not ask.

// What context.peer() begins with on a connection of a UnixAcceptor; its descriptor follows.
inline constexpr std::string_view kAcceptedPeer = "fd:";

// The users at the other end of accepted connections. memory: one entry a descriptor number.
// threads: safe.
class UnixPeers {
 public:
  void Note(int descriptor, uid_t user);
  // peer: of a call, as context.peer(). none: it did not come over an accepted connection.
  std::optional<uid_t> UserOf(std::string_view peer) const;

 private:
  mutable std::mutex mutex_;
  std::map<int, uid_t> users_;  // by descriptor; guarded by mutex_
};

// "uid 1000 (alice)", or "uid 1000" when the user database has no name. cost: may wait for the
// directory service of the machine, so it is for rare calls.
std::string DescribeUser(uid_t user);

// threads: those of one thread, but for the thread that it owns and the counters.
class UnixAcceptor {
 public:
  struct Options {
    UnixPeers* peers = nullptr;  // outlives the acceptor
    // See ConnectionAcceptor::Options.
    int32_t descriptors_below = std::numeric_limits<int32_t>::max();
    absl::Duration silence = absl::Seconds(10);
  };
  // Replaces a socket that nobody serves. The umask says who may connect.
  // errors: Unavailable with the system's reason.
  static absl::StatusOr<std::unique_ptr<UnixAcceptor>> Listen(const std::string& path,
                                                              Options options);
  // Accepts from now on. server: started; shut down only after this object's end. Once.
  void Serve(grpc::Server* server);
  // As Stop.
  ~UnixAcceptor();
  UnixAcceptor(const UnixAcceptor&) = delete;
  UnixAcceptor& operator=(const UnixAcceptor&) = delete;

  // Accepts no more, and removes the socket.
  void Stop();

  const ConnectionAcceptor& connections() const { return acceptor_; }

 private:
  UnixAcceptor(std::string path, Descriptor listener, Options options);
  void Hand(Descriptor connection);

  const std::string path_;
  const Options options_;
  grpc::Server* server_ = nullptr;
  bool stopped_ = false;
  int connections_ = 0;  // handed over so far; of the acceptor's thread
  ConnectionAcceptor acceptor_;
};

}  // namespace eplb

#endif  // EPLB_SERVER_RPC_ACCEPTORS_H_
