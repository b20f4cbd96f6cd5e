// All of eplbd in one object: store, core, gRPC and HTTP.
#ifndef EPLB_SERVER_DAEMON_H_
#define EPLB_SERVER_DAEMON_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "server/config/config.h"
#include "server/http/http_server.h"
#include "server/http/metrics.h"
#include "server/process/socket.h"
#include "server/store/store.h"

namespace eplb {

// How many file descriptors the daemon may have, and what they are for.

// Sets the process's limit of open files to the highest that it may choose itself. The usual limit
// of 1024 is for programs that call select, which this one does not.
// Returns the limit in force.
int64_t RaiseDescriptorLimit();
// The limit in force.
int64_t DescriptorLimit();

// Each stream of a rank has a connection, so a descriptor, of its own; what is left belongs to the
// store, the log, HTTP and connections of queries.
struct DescriptorPlan {
  int32_t max_sessions = 0;      // at least 1
  int32_t tcp_below = 0;         // see ConnectionAcceptor::Options::descriptors_below
  int32_t unix_below = 0;        // higher: the operators' way in when ranks take all of the other
  size_t http_connections = 0;   // see HttpServer::Start
  std::string no_more_sessions;  // why there are no more than max_sessions
  std::string warning;           // one sentence when `wanted` sessions do not fit, else empty
};
// limit: of open files. wanted: limits.max_sessions.
DescriptorPlan PlanDescriptors(int64_t limit, int32_t wanted);

// What the HTTP side shows of a running daemon: one snapshot of its parts per request.

class RpcServer;
class Runner;

struct Observed {
  const Runner* runner = nullptr;  // both outlive the HTTP server
  const RpcServer* rpc = nullptr;
  std::string tls_cert;     // a path; empty without TLS
  bool per_expert = false;  // metrics.per_expert
  std::string version;
};

MetricsSnapshot TakeSnapshot(const Observed& observed);
HttpServer::Sources SourcesOf(const Observed& observed);

class HttpServer;
class RpcServer;
class Runner;

// threads: one at a time, but for what the parts do on their own threads.
class Daemon {
 public:
  // Serves when it returns. config.store_path must be set, and config.unix_socket be a path or
  // "none". store: of a daemon that was elected, opened; null: the one that `config` names. errors:
  // those of the store, of the core's start and of listening; each names path or address.
  static absl::StatusOr<std::unique_ptr<Daemon>> Start(const DaemonConfig& config,
                                                       std::unique_ptr<Store> store = nullptr);
  // As Shutdown with no grace.
  ~Daemon();
  Daemon(const Daemon&) = delete;
  Daemon& operator=(const Daemon&) = delete;

  const Address& grpc_address() const;
  const Address& http_address() const;
  // The path of the socket beside grpc_address; empty: none.
  const std::string& unix_socket() const;
  Runner& runner() { return *runner_; }

  // Asks every rank to close its stream within `grace`; refuses new ones; /readyz turns 503.
  void BeginDrain(absl::Duration grace);
  int32_t open_sessions() const;
  // Streams of ranks that came, those that were refused included, since the start: who compares two
  // answers knows whether ranks reach this daemon.
  int64_t streams_seen() const;
  // As /livez. errors: Unavailable, saying since when the core's thread does not answer.
  absl::Status Alive() const;
  // Ends what is still open, within `grace`, and stops the core's thread.
  void Shutdown(absl::Duration grace);

 private:
  Daemon();

  std::unique_ptr<Runner> runner_;
  std::unique_ptr<RpcServer> rpc_;
  std::unique_ptr<HttpServer> http_;
};

// "0.1.0"
std::string DaemonVersion();

}  // namespace eplb

#endif  // EPLB_SERVER_DAEMON_H_
