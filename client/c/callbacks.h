// Callbacks of C made those of C++.
#ifndef EPLB_CLIENT_C_CALLBACKS_H_
#define EPLB_CLIENT_C_CALLBACKS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

#include "client/c/eplb.h"
#include "client/client.h"

namespace eplb::c {

// rank: of the caller, whose own answer is looked for at its place.
Exchange MakeExchange(eplb_exchange exchange, void* user, int32_t rank);

ExpertProbe MakeProbe(eplb_probe probe, void* user);

// errors: InvalidArgument naming the tensor, for what is no such struct, no such role, or a name
// that is NULL.
absl::StatusOr<std::vector<ExpertTensorView>> ReadTensors(const eplb_tensor* tensors,
                                                          size_t num_tensors);

}  // namespace eplb::c

#endif  // EPLB_CLIENT_C_CALLBACKS_H_
