// In place of device_transports.cc in a build without CUDA, where no memory is a device's.
#include "client/rows/paths/device_transports.h"

namespace eplb {

std::vector<TransportCandidate> DeviceCandidates(const RowMoverOptions&,
                                                 const std::vector<RankId>&) {
  return {};
}

absl::Status CheckKernelsOf(const RowMemory&) { return absl::OkStatus(); }

absl::Status LoadTokenKernels(const RowMemory&) { return absl::OkStatus(); }

void TellDevice(int32_t, TransportReport&) {}

absl::StatusOr<std::unique_ptr<cuda::RowQueue>> MakeQueueFor(const RowMemory&) {
  return cuda::MakeHostRowQueue();
}

}  // namespace eplb
