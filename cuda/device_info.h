// What launchers ask of the current device, kept after the first question: a launch is short, and
// asking the driver again at each is not.
#ifndef EPLB_CUDA_DEVICE_INFO_H_
#define EPLB_CUDA_DEVICE_INFO_H_

#include <cstdint>

#include "absl/status/statusor.h"

namespace eplb::cuda {

// Multiprocessors of the current device. errors: as ToStatus. threads: safe.
absl::StatusOr<int32_t> NumMultiprocessors();

}  // namespace eplb::cuda

#endif  // EPLB_CUDA_DEVICE_INFO_H_
