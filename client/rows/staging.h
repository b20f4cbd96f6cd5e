// Where each row of a migration plan lies in the staging of its destination: computed alike on
// every rank, so that a sender knows its receivers' offsets.
#ifndef EPLB_CLIENT_ROWS_STAGING_H_
#define EPLB_CLIENT_ROWS_STAGING_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "client/rows/control/socket.h"
#include "client/rows/expert_tensors.h"
#include "placement/migration_plan.h"

namespace eplb {

// Rows start at multiples of this in staging.
inline constexpr int64_t kStagingAlignment = 64;

int64_t RoundUpToStaging(int64_t bytes);

// The tensors of each layer, by name.
class TensorsByLayer {
 public:
  // REQUIRES: CheckTensors said ok; `tensors` outlives this.
  TensorsByLayer(int32_t num_layers, std::span<const ExpertTensor> tensors);
  std::span<const ExpertTensor* const> Of(LayerId layer) const { return layers_[layer.value]; }
  int32_t num_layers() const { return static_cast<int32_t>(layers_.size()); }

 private:
  std::vector<std::vector<const ExpertTensor*>> layers_;
};

// One tensor's row of one transfer.
struct StagedRow {
  const Transfer* transfer = nullptr;
  const ExpertTensor* tensor = nullptr;
  int64_t offset = 0;  // in the destination's staging
  int32_t row = 0;     // number of the row at its destination, for the transport
};

struct StagingLayout {
  std::vector<StagedRow> rows;      // that `gpu` sends, receives or copies, in the plan's order
  std::vector<int64_t> used_bytes;  // [G], staging that each GPU needs
};

// The rows of each destination follow plan.transfers, then plan.local; within a transfer the
// tensors follow their names: weights when it has weight slots, state when it has state slots.
// errors: InvalidArgument when the plan does not fit the topology: layer, GPU or slot.
// cost: O(transfers * tensors of a layer). The plan must outlive the result.
absl::StatusOr<StagingLayout> LayOutStaging(const MigrationPlan& plan, const Topology& topology,
                                            const TensorsByLayer& tensors, GpuId gpu);

// Staging memory that ranks of one host can share: a sealed memfd, handed over a unix socket.

// A mapping of a memfd: our own arena, or a peer's that we write into. Page-aligned.
class StagingArena {
 public:
  StagingArena() = default;
  StagingArena(StagingArena&& other) noexcept;
  StagingArena& operator=(StagingArena&& other) noexcept;
  ~StagingArena();

  // All pages are allocated now, so that a full host is an error here and not a signal later. The
  // size is sealed: nobody can shrink the memory under another's hands. errors: InvalidArgument for
  // a negative size; ResourceExhausted, with what is needed and what is free.
  static absl::StatusOr<StagingArena> Make(int64_t bytes);
  // The peer's arena behind `fd`. errors: FailedPrecondition when it is not sealed or not of
  // `bytes`; ResourceExhausted when it cannot be mapped.
  static absl::StatusOr<StagingArena> Map(Fd fd, int64_t bytes);

  bool mapped() const { return base_ != nullptr; }
  std::span<std::byte> bytes() const { return {base_, size_}; }
  int fd() const { return fd_.get(); }

 private:
  StagingArena(Fd fd, std::byte* base, size_t size)
      : fd_(std::move(fd)), base_(base), size_(size) {}

  Fd fd_;
  std::byte* base_ = nullptr;
  size_t size_ = 0;
};

// Passes a descriptor over a connected unix socket, with one byte. errors: Unavailable.
absl::Status SendDescriptor(int socket, int descriptor);
// errors: Unavailable, DeadlineExceeded, FailedPrecondition when no descriptor came with the byte.
absl::StatusOr<Fd> ReceiveDescriptor(int socket, absl::Time deadline);

}  // namespace eplb

#endif  // EPLB_CLIENT_ROWS_STAGING_H_
