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

// What MakeDaemonExchange of client/client.h promises. threads: one caller of the result.
DaemonExchangeFunction MakeExchangeThroughDaemon(std::string endpoint, std::string job,
                                                 int32_t rank, int32_t world_size,
                                                 absl::Duration timeout, wire::TlsFiles tls = {});

}  // namespace eplb

#endif  // EPLB_CLIENT_SESSION_DAEMON_EXCHANGE_H_
