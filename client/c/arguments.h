// Arguments of the ABI as those of Client: callbacks, tensors and options.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

#include "client/c/eplb.h"
#include "client/client.h"

namespace eplb::c {

// rank: that of the caller, whose own answer must be at its place.
AllGather MakeAllGather(eplb_all_gather all_gather, void* user, int32_t rank);

ExpertProbe MakeProbe(eplb_probe probe, void* user);

// errors: InvalidArgument naming the tensor, for a wrong struct or role, or a name that is NULL.
absl::StatusOr<std::vector<ExpertTensorView>> ReadTensors(const eplb_tensor* tensors,
                                                          size_t num_tensors);

// Returns the options of eplb_client_options_init().
eplb_client_options DefaultClientOptions();

// errors: InvalidArgument for a wrong struct, naming the field; Client::Connect checks the rest.
absl::StatusOr<ClientOptions> ReadClientOptions(const eplb_client_options* given);

}  // namespace eplb::c
