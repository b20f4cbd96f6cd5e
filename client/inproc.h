// A client whose ranks are threads of one process: tests and simulations.
#ifndef EPLB_CLIENT_INPROC_H_
#define EPLB_CLIENT_INPROC_H_

#include <memory>

#include "absl/status/statusor.h"

#include "client/client.h"
#include "client/rows/control/control_channel.h"
#include "client/rows/transport.h"
#include "proto/wire/messages.h"

namespace eplb {

// As Client::Connect, over channels that are already there; ClientOptions::transport is "inproc".
// transport: its staging is at least what RegisterExperts needs, else that fails with
// InvalidArgument.
absl::StatusOr<std::unique_ptr<Client>> ConnectInproc(ClientOptions options, AllGather all_gather,
                                                      std::unique_ptr<ControlChannel> control,
                                                      std::unique_ptr<Transport> transport);

// Says to this rank what a daemon would, to a client that has none. REQUIRES: RegisterExperts
// returned OK.
void TellInproc(Client& client, const wire::DownMessage& message);

}  // namespace eplb

#endif  // EPLB_CLIENT_INPROC_H_
