// What a trainer registers, taken apart by how it is treated and checked before ranks compare it.
#ifndef EPLB_CLIENT_REGISTERED_TENSORS_H_
#define EPLB_CLIENT_REGISTERED_TENSORS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

#include "client/client.h"
#include "client/migration/derived_tensors.h"
#include "client/migration/executor.h"
#include "client/start.h"

namespace eplb {

struct RegisteredTensors {
  std::vector<ExpertTensor> moved;
  std::vector<DerivedTensor> derived;
};

// errors: InvalidArgument naming the tensor: a derived one that has rows, or a moved one that has a
// rebuild.
absl::StatusOr<RegisteredTensors> SortByRole(std::span<const ExpertTensorView> views);

// What the tensors of one rank need, and what must be equal on all ranks.
struct TensorNeeds {
  ExpertBytes bytes;
  int64_t staging_bytes = 0;
  StartFields compared;
};
// errors: as CheckTensors, CheckDerived and StagingBytes.
absl::StatusOr<TensorNeeds> NeedsOf(const RegisteredTensors& tensors,
                                    const ExecutorOptions& options);

}  // namespace eplb

#endif  // EPLB_CLIENT_REGISTERED_TENSORS_H_
