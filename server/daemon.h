// All of eplbd in one object: store, core, gRPC and HTTP.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "server/config/config.h"
#include "server/process/address.h"
#include "server/store/store.h"

namespace eplb {

class HttpServer;
class RpcServer;
class Runner;

// threads: one at a time, but for what the parts do on their own threads.
class Daemon {
 public:
  // Serves when it returns. store.path must be set, and listen.unix be a path or "none". store: of
  // a daemon that was elected, opened; null: the one that `config` names. errors: those of the
  // store, of the core's start and of listening; each names path or address.
  static absl::StatusOr<std::unique_ptr<Daemon>> Start(const DaemonConfig& config,
                                                       std::unique_ptr<Store> store = nullptr);
  // Calls Shutdown with no grace.
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
  // Returns the status of /livez. errors: Unavailable with the time since which the core's thread
  // does not answer.
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
