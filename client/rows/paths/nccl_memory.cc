#include "client/rows/paths/nccl_memory.h"

#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "client/rows/staging.h"
#include "cuda/nccl_communicator.h"

namespace eplb {
namespace {

constexpr int64_t kLargestOfFour = int64_t{16} << 20;

}  // namespace

size_t NcclMemory::NumBuffers(int64_t piece_bytes) { return piece_bytes <= kLargestOfFour ? 4 : 2; }

absl::StatusOr<NcclMemory> NcclMemory::Make(NcclMemoryOptions options, cuda::RowQueue& queue) {
  NcclMemory memory;
  memory.num_buffers_ = NumBuffers(options.piece_bytes);
  const auto buffers_bytes = static_cast<size_t>(options.piece_bytes) * memory.num_buffers_;
  const bool has_staging = options.staging.has_value();
  if (has_staging) {
    memory.given_ = *std::move(options.staging);
    options.staging_bytes = 0;
  }
  // NCCL leaves open what it does where one end of a transfer is registered: packing buffers are
  // registered only with the staging.
  const bool registers =
      options.device.has_value() && (!has_staging || options.is_staging_registrable);
  const int64_t staging_bytes = RoundUpToStaging(options.staging_bytes);
  const int64_t num_bytes =
      staging_bytes + static_cast<int64_t>(buffers_bytes) + options.scratch_bytes;
  absl::StatusOr<cuda::RowBuffer> block = absl::FailedPreconditionError("host memory");
  if (registers) {
    block = cuda::AllocateByNccl(*options.library, *options.device, num_bytes);
  }
  memory.is_of_nccl_ = block.ok();
  if (!block.ok()) {
    const absl::Status why_not = block.status();
    block = queue.Allocate(num_bytes);
    EPLB_RETURN_IF_ERROR(block.status());
    if (registers && options.on_note) {
      options.on_note(
          absl::StrCat("nccl moves rows without registering its memory: ", why_not.message()));
    }
  }
  memory.block_ = *std::move(block);
  const std::span<std::byte> all = memory.block_.bytes;
  memory.staging_ =
      has_staging ? memory.given_.bytes : all.first(static_cast<size_t>(options.staging_bytes));
  memory.buffers_ = all.subspan(static_cast<size_t>(staging_bytes), buffers_bytes);
  memory.scratch_ = all.last(static_cast<size_t>(options.scratch_bytes));
  return memory;
}

std::span<std::byte> NcclMemory::packed(size_t piece) const {
  const size_t bytes = buffers_.size() / num_buffers_;
  return buffers_.subspan(piece % num_buffers_ * bytes, bytes);
}

std::vector<std::span<std::byte>> NcclMemory::registrable() const {
  if (!is_of_nccl_) return {};
  if (given_.bytes.empty()) return {block_.bytes};
  return {block_.bytes, given_.bytes};
}

}  // namespace eplb
