// Carries a migration plan out on one rank: rows into staging, then, once the ranks have voted,
// staging into slots.
#ifndef EPLB_CLIENT_MIGRATION_EXECUTOR_H_
#define EPLB_CLIENT_MIGRATION_EXECUTOR_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "client/migration/transport.h"
#include "placement/migration_plan.h"

namespace eplb {

enum class TensorRole { kWeight, kState };

// One tensor of one layer: local slot i of this GPU is the `row_bytes` bytes at base + i *
// row_stride.
struct ExpertTensor {
  std::string name;  // e.g. "layers.3.w1"; unique
  LayerId layer;
  TensorRole role = TensorRole::kWeight;
  void* base = nullptr;
  int32_t num_rows = 0;  // local slots of this GPU
  int64_t row_bytes = 0;
  int64_t row_stride = 0;  // >= row_bytes
};

// What the ranks must agree on about their tensors, as text: compared in the start vote.
std::string DescribeTensors(std::span<const ExpertTensor> tensors);

// Bytes of one expert of one layer by role, the same in every layer. errors: InvalidArgument naming
// the tensor: a name twice, a layer outside the topology or without the tensors other layers have,
// rows other than the GPU's slots, stride 0 or below row bytes, null base, sizes that differ
// between layers, rows that share bytes with another tensor's.
struct ExpertBytes {
  int64_t weight = 0;
  int64_t state = 0;
};
absl::StatusOr<ExpertBytes> CheckTensors(const Topology& topology, GpuId gpu,
                                         std::span<const ExpertTensor> tensors);

struct ExecutorOptions {
  Topology topology;
  GpuId gpu;         // of this rank
  int32_t lane = 0;  // rows move only inside a lane: the peer of GPU g is rank lane * G + g
  StateResidency state_residency = StateResidency::kEveryReplica;
  int32_t layers_per_chunk =
      4;  // with max_slots_per_gpu and the row sizes, what the arena must hold
};

// Staging that a rank needs: layers_per_chunk * max slots of a GPU * bytes of an expert, each row
// rounded up to 64 bytes.
absl::StatusOr<int64_t> StagingBytes(const ExecutorOptions& options,
                                     std::span<const ExpertTensor> tensors);

// Threads: the training thread only, except CheckFits and migration_options, which read constants.
// The tensors must outlive it.
class Executor {
 public:
  // errors: as CheckTensors; InvalidArgument when the transport's arena is too small.
  static absl::StatusOr<std::unique_ptr<Executor>> Make(const ExecutorOptions& options,
                                                        std::vector<ExpertTensor> tensors,
                                                        std::unique_ptr<Transport> transport);
  ~Executor();

  // ok when the plan's rows for this rank fit into staging. errors: ResourceExhausted saying how
  // much is missing.
  absl::Status CheckFits(const MigrationPlan& plan) const;
  MigrationOptions migration_options() const;

  struct Staged {
    int64_t sent_bytes = 0;
    int64_t received_bytes = 0;  // from other ranks
  };
  // Brings every row this rank needs into staging, checks checksums, and returns when none of our
  // own writes can still land, whatever the result. Old slots are not touched. post_id: equal on
  // all ranks and rising.
  absl::StatusOr<Staged> Stage(const MigrationPlan& plan, uint64_t post_id, absl::Time deadline);
  // Copies staging into the slots. REQUIRES: Stage returned OK and the second vote said yes.
  void Commit();
  // Forgets what is staged. REQUIRES: a vote with a result, or the end of the incarnation.
  void Discard();

 private:
  struct Impl;
  explicit Executor(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace eplb

#endif  // EPLB_CLIENT_MIGRATION_EXECUTOR_H_
