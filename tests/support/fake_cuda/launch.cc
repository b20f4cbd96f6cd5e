// The kernels' launchers: a kernel's body runs on the host when the stream comes to it.
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "cuda/add_rows.h"
#include "cuda/copy.h"
#include "cuda/count.h"
#include "cuda/kernels/copy_body.h"
#include "cuda/route.h"
#include "cuda/runtime.h"
#include "cuda/square_rows.h"
#include "tests/support/fake_cuda/fake_cuda.h"

namespace eplb::cuda {
namespace {

namespace fake = eplb::fake_cuda;

// As a kernel sees it; a sticky error and null where it would see nothing.
template <class T>
T* OnDevice(T* address, int64_t num_bytes) {
  const fake::View view = fake::ViewOf(address, static_cast<size_t>(num_bytes));
  const bool seen = view.place != fake::Place::kPageable && view.bytes != nullptr &&
                    fake::KernelReaches(fake::RunningDevice(), address);
  if (!seen) fake::Fail(cudaErrorIllegalAddress);
  return seen ? reinterpret_cast<T*>(view.bytes) : nullptr;
}

void RunCopyRows(const CopyArgs& args) {
  const TiledRow* const rows = OnDevice(args.rows, int64_t{sizeof(TiledRow)} * args.num_rows);
  const bool sums = args.checksums != nullptr;
  uint64_t* const checksums =
      sums ? OnDevice(args.checksums, int64_t{sizeof(uint64_t)} * args.num_rows) : nullptr;
  if (fake::Failure() != cudaSuccess) return;
  for (int32_t i = 0; i < args.num_rows; ++i) {
    RowCopy row = rows[i].copy;
    if (row.num_bytes > 0) {
      row.source = OnDevice(row.source, row.num_bytes);
      if (row.destination != nullptr) row.destination = OnDevice(row.destination, row.num_bytes);
      if (fake::Failure() != cudaSuccess) return;
    }
    for (int64_t tile = 0; tile < NumCopyTiles(row.num_bytes); ++tile) {
      if (sums) {
        checksums[i] += CopyTilePart<true>(row, tile, 0, 1);
      } else {
        (void)CopyTilePart<false>(row, tile, 0, 1);
      }
    }
  }
}

// The table's rows as a kernel sees them; null where it would see nothing.
std::vector<RowCopy> RowsOnDevice(const TiledRow* table, int32_t num_rows, bool has_destinations) {
  const TiledRow* const tiled = OnDevice(table, int64_t{sizeof(TiledRow)} * num_rows);
  std::vector<RowCopy> rows;
  for (int32_t i = 0; i < num_rows && fake::Failure() == cudaSuccess; ++i) {
    RowCopy row = tiled[i].copy;
    if (row.num_bytes > 0) {
      row.source = OnDevice(row.source, row.num_bytes);
      if (has_destinations) row.destination = OnDevice(row.destination, row.num_bytes);
    }
    rows.push_back(row);
  }
  return rows;
}

void RunAddRows(const AddArgs& args) {
  const std::vector<RowCopy> rows = RowsOnDevice(args.rows, args.num_rows, true);
  if (fake::Failure() == cudaSuccess) (void)AddRowsOnHost(rows, args.type);
}

void RunSquareRows(const SquareArgs& args) {
  const std::vector<RowCopy> rows = RowsOnDevice(args.rows, args.num_rows, false);
  double* const sums = OnDevice(args.sums, int64_t{sizeof(double)} * args.num_rows);
  if (fake::Failure() == cudaSuccess) (void)SquareRowsOnHost(rows, args.type, {sums, rows.size()});
}

// As the kernel sees them; null stays null. Sizes follow from the choices.
CountArgs OnDevice(CountArgs args) {
  const int64_t num_pairs = args.num_tokens * args.top_k;
  const int64_t id_bytes = args.id_type == ExpertIdType::kInt32 ? 4 : 8;
  args.expert_ids = OnDevice(static_cast<const std::byte*>(args.expert_ids), num_pairs * id_bytes);
  if (args.is_padding != nullptr) args.is_padding = OnDevice(args.is_padding, args.num_tokens);
  if (args.counts != nullptr) {
    args.counts = OnDevice(args.counts, int64_t{sizeof(int64_t)} * args.num_experts);
    args.out_of_range = OnDevice(args.out_of_range, sizeof(int64_t));
  }
  return args;
}

void RunCount(const CountArgs& args) {
  const CountArgs seen = OnDevice(args);
  if (fake::Failure() == cudaSuccess) (void)CountOnHost(seen);
}

void RunRoute(RouteArgs args) {
  const int64_t id_bytes = args.choices.id_type == ExpertIdType::kInt32 ? 4 : 8;
  const int64_t num_pairs = args.choices.num_tokens * args.choices.top_k;
  const int32_t num_experts = args.choices.num_experts;
  args.choices = OnDevice(args.choices);
  args.slots = OnDevice(static_cast<std::byte*>(args.slots), num_pairs * id_bytes);
  RouteTable& table = args.table;
  table.first_candidate =
      OnDevice(table.first_candidate, int64_t{sizeof(int32_t)} * (num_experts + 1));
  if (fake::Failure() != cudaSuccess) return;
  const int64_t num_candidates = table.first_candidate[num_experts];
  table.candidates = OnDevice(table.candidates, int64_t{sizeof(int32_t)} * num_candidates);
  if (table.thresholds != nullptr) {
    table.thresholds = OnDevice(table.thresholds, int64_t{sizeof(uint32_t)} * num_candidates);
  }
  if (fake::Failure() == cudaSuccess) (void)RouteOnHost(args);
}

// Under Mutex.
struct Loading {
  std::set<std::pair<std::string, int>> loaded;  // name of a kernel, device
  int64_t num_unloaded_launches = 0;
};
Loading& TheLoading() {
  static auto* const loading = new Loading();
  return *loading;
}

absl::Status Load(const std::string& kernel) {
  const fake::Call call("cudaFuncGetAttributes");
  if (call.error() != cudaSuccess) return ToStatus(cudaGetLastError(), "cudaFuncGetAttributes");
  TheLoading().loaded.emplace(kernel, fake::CurrentDevice());
  return absl::OkStatus();
}

// A launch of a kernel, which also finds what went wrong on this thread before.
absl::Status Launch(const std::string& kernel, cudaStream_t stream, std::function<void()> work) {
  const fake::Call call("launch");
  const std::string what = "launch of the " + kernel + " kernel";
  if (call.error() != cudaSuccess) return ToStatus(cudaGetLastError(), what);
  if (fake::DeviceOf(stream) != fake::CurrentDevice()) {
    return ToStatus(fake::Keep(cudaErrorInvalidResourceHandle), what);
  }
  if (const cudaError_t before = cudaGetLastError(); before != cudaSuccess) {
    return ToStatus(before, what);
  }
  if (!TheLoading().loaded.contains({kernel, fake::CurrentDevice()})) {
    ++TheLoading().num_unloaded_launches;
  }
  fake::Enqueue(stream, std::move(work));
  return absl::OkStatus();
}

}  // namespace

absl::Status LaunchCount(const CountArgs& args, cudaStream_t stream) {
  EPLB_RETURN_IF_ERROR(CheckCountArgs(args));
  if (args.num_tokens == 0) return absl::OkStatus();
  return Launch("count", stream, [args] { RunCount(args); });
}

absl::Status LaunchRoute(const RouteArgs& args, cudaStream_t stream) {
  EPLB_RETURN_IF_ERROR(CheckRouteArgs(args));
  if (args.choices.num_tokens == 0) return absl::OkStatus();
  return Launch("route", stream, [args] { RunRoute(args); });
}

absl::Status LaunchCopyRows(const CopyArgs& args, int32_t, cudaStream_t stream) {
  EPLB_RETURN_IF_ERROR(CheckCopyArgs(args));
  if (args.num_rows == 0) return absl::OkStatus();
  if (args.checksums != nullptr) {
    EPLB_RETURN_IF_ERROR(
        ToStatus(cudaMemsetAsync(args.checksums, 0, sizeof(uint64_t) * args.num_rows, stream),
                 "cudaMemsetAsync"));
  }
  return Launch("copy", stream, [args] { RunCopyRows(args); });
}

absl::Status LaunchAddRows(const AddArgs& args, int32_t, cudaStream_t stream) {
  EPLB_RETURN_IF_ERROR(CheckAddArgs(args));
  if (args.num_rows == 0) return absl::OkStatus();
  return Launch("add", stream, [args] { RunAddRows(args); });
}

absl::Status LaunchSquareRows(const SquareArgs& args, cudaStream_t stream) {
  EPLB_RETURN_IF_ERROR(CheckSquareArgs(args));
  if (args.num_rows == 0) return absl::OkStatus();
  return Launch("squares", stream, [args] { RunSquareRows(args); });
}

absl::Status LoadCopyKernels() { return Load("copy"); }
absl::Status LoadAddKernels() { return Load("add"); }
absl::Status LoadSquareKernels() { return Load("squares"); }
absl::Status LoadCountKernels() { return Load("count"); }
absl::Status LoadRouteKernels() { return Load("route"); }

}  // namespace eplb::cuda

namespace eplb::fake_cuda {

int64_t NumUnloadedLaunches() {
  const std::lock_guard<std::recursive_mutex> lock(Mutex());
  return cuda::TheLoading().num_unloaded_launches;
}

}  // namespace eplb::fake_cuda
