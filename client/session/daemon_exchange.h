// The rendezvous of a starting job through the daemon.
#ifndef EPLB_CLIENT_SESSION_DAEMON_EXCHANGE_H_
#define EPLB_CLIENT_SESSION_DAEMON_EXCHANGE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "proto/wire/tls_files.h"

namespace eplb {

using DaemonExchangeFunction =
    std::function<absl::StatusOr<std::vector<std::string>>(std::string_view bytes)>;

struct DaemonExchangeOptions {
  std::vector<std::string> endpoints;  // of daemons that stand in for each other, at least one
  wire::TlsFiles tls;
  std::string job;
  std::string launch_id;
  int32_t rank = 0;
  int32_t world_size = 1;
  absl::Duration timeout = absl::Seconds(60);  // of each exchange
};

// What MakeDaemonExchange of client/client.h promises. threads: one caller of the result.
DaemonExchangeFunction MakeExchangeThroughDaemon(DaemonExchangeOptions options);

}  // namespace eplb

#endif  // EPLB_CLIENT_SESSION_DAEMON_EXCHANGE_H_
