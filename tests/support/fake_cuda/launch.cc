// The row copy's launcher: the body of its kernel runs on the host when the stream comes to it.
#include "cuda/copy.h"
#include "cuda/kernels/copy_body.h"
#include "placement/status_macros.h"
#include "tests/support/fake_cuda/fake_cuda.h"

namespace eplb::cuda {
namespace {

namespace fake = eplb::fake_cuda;

// As a kernel sees it; a sticky error and null where it would see nothing.
template <class T>
T* OnDevice(T* address, int64_t num_bytes) {
  const fake::View view = fake::ViewOf(address, static_cast<size_t>(num_bytes));
  const bool seen = view.place != fake::Place::kPageable && view.bytes != nullptr;
  if (!seen) fake::Fail(cudaErrorIllegalAddress);
  return seen ? reinterpret_cast<T*>(view.bytes) : nullptr;
}

void RunCopyRows(const CopyArgs& args) {
  const TiledRow* const rows = OnDevice(args.rows, int64_t{sizeof(TiledRow)} * args.num_rows);
  uint64_t* const checksums = OnDevice(args.checksums, int64_t{sizeof(uint64_t)} * args.num_rows);
  if (rows == nullptr || checksums == nullptr) return;
  for (int32_t i = 0; i < args.num_rows; ++i) {
    RowCopy row = rows[i].copy;
    if (row.num_bytes > 0) {
      row.source = OnDevice(row.source, row.num_bytes);
      if (row.destination != nullptr) row.destination = OnDevice(row.destination, row.num_bytes);
      if (fake::Failure() != cudaSuccess) return;
    }
    checksums[i] = 0;
    for (int64_t tile = 0; tile < NumCopyTiles(row.num_bytes); ++tile) {
      checksums[i] += CopyTilePart<true>(row, tile, 0, 1);
    }
  }
}

}  // namespace

absl::Status LaunchCopyRows(const CopyArgs& args, int32_t, cudaStream_t stream) {
  EPLB_RETURN_IF_ERROR(CheckCopyArgs(args));
  if (args.checksums == nullptr) {
    return absl::UnimplementedError("the stand-in copies rows with checksums only");
  }
  const std::lock_guard<std::recursive_mutex> lock(fake::Mutex());
  if (args.num_rows > 0) fake::Enqueue(stream, [args] { RunCopyRows(args); });
  return absl::OkStatus();
}

absl::Status LoadCopyKernels() { return absl::OkStatus(); }

}  // namespace eplb::cuda
