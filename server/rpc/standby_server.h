// The gRPC side of a daemon that stands by: it refuses every call and names the daemon that leads.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <set>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "base/tls_files.h"
#include "server/config/tls_options.h"
#include "server/process/socket.h"

namespace eplb {

struct StandbyOptions {
  Address listen;  // address of TCP
  TlsOptions tls = {};
  absl::Duration handshake_deadline = absl::Seconds(10);
  int32_t descriptors_below = std::numeric_limits<int32_t>::max();  // for its connections
  // The address of the daemon that leads, empty when there is none. Called on gRPC's threads; must
  // not wait.
  std::function<std::string()> leader = {};
  // Returns one sentence about what is wrong with this daemon; empty if nothing is wrong. Called as
  // `leader` is.
  std::function<std::string()> trouble = [] { return std::string(); };
};

// Each call ends with UNAVAILABLE and, in its trailers, wire::kLeaderKey and wire::kTroubleKey. The
// health service says NOT_SERVING. threads: safe.
class StandbyServer {
 public:
  // errors: as RpcServer::Start.
  static absl::StatusOr<std::unique_ptr<StandbyServer>> Start(StandbyOptions options);
  // Closes every connection; the address can be listened on again.
  ~StandbyServer();
  StandbyServer(const StandbyServer&) = delete;
  StandbyServer& operator=(const StandbyServer&) = delete;

  // With the port in use.
  const Address& address() const;
  // Returns jobs of ranks that were refused since the previous call: see
  // RefusedJobs.
  std::set<std::string> TakeRefusedJobs();

 private:
  struct Parts;
  explicit StandbyServer(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

// True if a daemon at `address` accepts a connection with these files.
bool Reaches(const std::string& address, const wire::TlsFiles& tls, absl::Duration within);

}  // namespace eplb
