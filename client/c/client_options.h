// Options of C made options of C++.
#ifndef EPLB_CLIENT_C_CLIENT_OPTIONS_H_
#define EPLB_CLIENT_C_CLIENT_OPTIONS_H_

#include "absl/status/statusor.h"

#include "client/c/eplb.h"
#include "client/client.h"

namespace eplb::c {

// What eplb_client_options_init() gives.
eplb_client_options DefaultClientOptions();

// errors: InvalidArgument for what is no such struct, naming the field; Client::Connect checks the
// rest.
absl::StatusOr<ClientOptions> ReadClientOptions(const eplb_client_options* given);

}  // namespace eplb::c

#endif  // EPLB_CLIENT_C_CLIENT_OPTIONS_H_
