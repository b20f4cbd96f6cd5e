// The kernels' launchers: a kernel's body runs on the host when the stream comes to it.
#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "cuda/add_rows.h"
#include "cuda/copy.h"
#include "cuda/count.h"
#include "cuda/kernels/copy_body.h"
#include "cuda/quota_route.h"
#include "cuda/route.h"
#include "cuda/runtime.h"
#include "cuda/split.h"
#include "cuda/split_exchange.h"
#include "cuda/square_rows.h"
#include "cuda/turn.h"
#include "tests/support/fake_cuda/fake_cuda.h"

namespace eplb::cuda {
namespace {

namespace fake = eplb::fake_cuda;

// Address for a kernel; a sticky error and null if the kernel would see no memory.
template <class T>
T* OnDevice(T* address, int64_t num_bytes) {
  const fake::View view = fake::ViewOf(address, static_cast<size_t>(num_bytes));
  const bool seen = view.place != fake::Place::kPageable && view.bytes != nullptr &&
                    fake::KernelReaches(fake::RunningDevice(), address);
  if (!seen) fake::Fail(cudaErrorIllegalAddress);
  return seen ? reinterpret_cast<T*>(view.bytes) : nullptr;
}

// A tile of a row in a table, as a kernel sees it. Without a row after an illegal address.
struct SeenTile {
  int32_t index = 0;  // index of the row
  int64_t tile = 0;   // index among the row's tiles
  int64_t num_bytes = 0;
  std::optional<RowCopy> row;
};

SeenTile SeeTile(const TiledRow* table, int32_t num_rows, int64_t tile) {
  const TiledRow* const rows = OnDevice(table, int64_t{sizeof(TiledRow)} * num_rows);
  if (rows == nullptr) return {};
  SeenTile seen{.index = RowOfTile(rows, num_rows, tile)};
  RowCopy row = rows[seen.index].copy;
  seen.tile = tile - rows[seen.index].first_tile;
  seen.num_bytes = std::min(kCopyTileBytes, row.num_bytes - seen.tile * kCopyTileBytes);
  if (row.num_bytes > 0) {
    const std::byte* const source = row.source;
    std::byte* const destination = row.destination;
    row.source = OnDevice(source, row.num_bytes);
    fake::CountRead(fake::ViewOf(source, 1), seen.num_bytes);
    if (destination != nullptr) {
      const fake::View view = fake::ViewOf(destination, 1);
      row.destination = OnDevice(destination, row.num_bytes);
      if (view.loses_writes) row.destination = nullptr;
      fake::CountWritten(view, seen.num_bytes);
    }
  }
  if (fake::Failure() == cudaSuccess) seen.row = row;
  return seen;
}

void RunCopyTile(const CopyArgs& args, int64_t tile) {
  uint64_t* const checksums =
      args.checksums == nullptr
          ? nullptr
          : OnDevice(args.checksums, int64_t{sizeof(uint64_t)} * args.num_rows);
  const SeenTile seen = SeeTile(args.rows, args.num_rows, tile);
  if (!seen.row.has_value()) return;
  if (checksums == nullptr) {
    (void)CopyTilePart<false>(*seen.row, seen.tile, 0, 1);
  } else {
    checksums[seen.index] += CopyTilePart<true>(*seen.row, seen.tile, 0, 1);
  }
}

void RunAddTile(const AddArgs& args, int64_t tile) {
  const SeenTile seen = SeeTile(args.rows, args.num_rows, tile);
  if (!seen.row.has_value() || seen.num_bytes == 0) return;
  const int64_t offset = seen.tile * kCopyTileBytes;
  const RowCopy part{.source = seen.row->source + offset,
                     .destination = seen.row->destination + offset,
                     .num_bytes = seen.num_bytes};
  if (AddRowsOnHost({&part, 1}, args.type).ok()) {
    fake::CountRead({.place = fake::Place::kDevice}, part.num_bytes);  // the destination
  }
}

void RunSquareRow(const SquareArgs& args, int64_t index) {
  const TiledRow* const rows = OnDevice(args.rows, int64_t{sizeof(TiledRow)} * args.num_rows);
  double* const sums = OnDevice(args.sums, int64_t{sizeof(double)} * args.num_rows);
  if (fake::Failure() != cudaSuccess) return;
  RowCopy row = rows[index].copy;
  if (row.num_bytes > 0) {
    fake::CountRead(fake::ViewOf(row.source, 1), row.num_bytes);
    row.source = OnDevice(row.source, row.num_bytes);
  }
  if (fake::Failure() == cudaSuccess)
    (void)SquareRowsOnHost({&row, 1}, args.type, {sums + index, 1});
}

// Arguments for a kernel; null stays null. Sizes follow from the choices.
CountArgs OnDevice(CountArgs args) {
  const int64_t num_pairs = args.num_tokens * args.top_k;
  const int64_t id_bytes = args.id_type == ExpertIdType::kInt32 ? 4 : 8;
  args.expert_ids = OnDevice(static_cast<const std::byte*>(args.expert_ids), num_pairs * id_bytes);
  if (args.is_padding != nullptr) args.is_padding = OnDevice(args.is_padding, args.num_tokens);
  if (args.counts != nullptr) {
    args.counts = OnDevice(args.counts, int64_t{sizeof(int64_t)} * args.num_experts);
    args.out_of_range = OnDevice(args.out_of_range, sizeof(int64_t));
  }
  if (args.chunk_counts != nullptr) {
    args.chunk_counts = OnDevice(args.chunk_counts, ChunkCountsBytes(args));
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

void RunQuotaRoute(QuotaRouteArgs args) {
  const int64_t id_bytes = args.choices.id_type == ExpertIdType::kInt32 ? 4 : 8;
  const int64_t num_pairs = args.choices.num_tokens * args.choices.top_k;
  const int32_t num_experts = args.choices.num_experts;
  args.choices = OnDevice(args.choices);
  args.slots = OnDevice(static_cast<std::byte*>(args.slots), num_pairs * id_bytes);
  args.first_slot = OnDevice(args.first_slot, int64_t{sizeof(int32_t)} * (num_experts + 1));
  args.own = OnDevice(args.own, int64_t{sizeof(int64_t)} * args.num_slots);
  args.beyond = OnDevice(args.beyond, sizeof(int64_t));
  if (fake::Failure() != cudaSuccess) return;
  args.replica_slot =
      OnDevice(args.replica_slot, int64_t{sizeof(int32_t)} * args.first_slot[num_experts]);
  if (fake::Failure() == cudaSuccess) (void)QuotaRouteOnHost(args);
}

void RunSplitExchange(SplitExchangeArgs args) {
  constexpr int64_t kWord = sizeof(int64_t);
  SplitMailbox& mailbox = args.mailbox;
  args.gathered = OnDevice(args.gathered, kWord * args.num_counts);
  args.number = OnDevice(args.number, kWord);
  args.tables = OnDevice(args.tables, sizeof(int32_t));
  args.drawn = OnDevice(args.drawn, kWord);
  args.own = OnDevice(args.own, kWord * args.num_slots);
  mailbox.counts = OnDevice(mailbox.counts, kWord * args.num_counts);
  mailbox.tables = OnDevice(mailbox.tables, kWord);
  mailbox.drawn = OnDevice(mailbox.drawn, kWord);
  mailbox.asked = OnDevice(mailbox.asked, kWord);
  mailbox.late = OnDevice(mailbox.late, kWord);
  mailbox.done = OnDevice(mailbox.done, kWord);
  mailbox.answer = OnDevice(mailbox.answer, kWord * args.num_slots);
  mailbox.answered = OnDevice(mailbox.answered, kWord);
  if (fake::Failure() == cudaSuccess) (void)SplitExchangeOnHost(args);
}

void RunTurn(TurnArgs args) {
  constexpr int64_t kWord = sizeof(int64_t);
  const CountArgs& choices = args.choices;
  const int64_t id_bytes = choices.id_type == ExpertIdType::kInt32 ? 4 : 8;
  if (args.slots != nullptr) {
    args.slots = OnDevice(static_cast<std::byte*>(args.slots),
                          choices.num_tokens * choices.top_k * id_bytes);
    args.slot_of_expert = OnDevice(args.slot_of_expert, kWord * (choices.num_experts + 1));
  }
  if (args.weight != nullptr) args.weight = OnDevice(args.weight, kWord);
  args.choices = OnDevice(args.choices);
  if (fake::Failure() == cudaSuccess) (void)TurnOnHost(args);
}

void RunSplitNote(SplitNoteArgs args) {
  constexpr int64_t kWord = sizeof(int64_t);
  args.quotas = OnDevice(args.quotas, kWord * args.num_slots);
  args.refused = OnDevice(args.refused, sizeof(int32_t));
  args.tables = OnDevice(args.tables, kWord);
  args.drawn = OnDevice(args.drawn, kWord);
  args.number = OnDevice(args.number, kWord);
  args.counts = OnDevice(args.counts, 2 * kWord);
  args.note = OnDevice(args.note, kWord * NoteWords(args.num_slots));
  if (fake::Failure() == cudaSuccess) (void)SplitNoteOnHost(args);
}

void RunSplit(SplitArgs args) {
  constexpr int64_t kWord = sizeof(int64_t);
  const int64_t layers = args.num_layers;
  args.tables = OnDevice(args.tables, SplitTableBytes(args.shape));
  args.counts = OnDevice(args.counts, kWord * args.num_sources * layers * args.shape.num_experts);
  args.quotas = OnDevice(args.quotas, kWord * layers * args.shape.num_slots);
  args.refused = OnDevice(args.refused, int64_t{sizeof(int32_t)} * layers);
  if (args.own != nullptr) args.own = OnDevice(args.own, kWord * layers * args.shape.num_slots);
  if (fake::Failure() == cudaSuccess) (void)SplitOnHost(args);
}

// Work of a kernel's blocks, one after the other.
struct Work {
  int64_t size = 1;
  std::function<void(int64_t index)> run;
};

// In parts, so that others move in between; few enough that a test is not slow.
void EnqueueInParts(cudaStream_t stream, const Work& work) {
  constexpr int64_t kMostParts = 8;
  const auto order = std::make_shared<const std::vector<int64_t>>(fake::DrawOrder(work.size));
  const int64_t num_parts = std::min(work.size, kMostParts);
  for (int64_t part = 0; part < num_parts; ++part) {
    fake::Enqueue(stream, [order, run = work.run, begin = work.size * part / num_parts,
                           end = work.size * (part + 1) / num_parts] {
      for (int64_t i = begin; i < end && fake::Failure() == cudaSuccess; ++i) {
        run((*order)[static_cast<size_t>(i)]);
      }
    });
  }
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
absl::Status Launch(const std::string& kernel, cudaStream_t stream, const Work& work) {
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
  fake::CountEnqueued(stream);
  EnqueueInParts(stream, work);
  return absl::OkStatus();
}

}  // namespace

absl::Status LaunchCount(const CountArgs& args, cudaStream_t stream) {
  EPLB_RETURN_IF_ERROR(CheckCountArgs(args));
  if (args.num_tokens == 0) return absl::OkStatus();
  return Launch("count", stream, {.run = [args](int64_t) { RunCount(args); }});
}

absl::Status LaunchRoute(const RouteArgs& args, cudaStream_t stream) {
  EPLB_RETURN_IF_ERROR(CheckRouteArgs(args));
  if (args.choices.num_tokens == 0) return absl::OkStatus();
  return Launch("route", stream, {.run = [args](int64_t) { RunRoute(args); }});
}

absl::Status LaunchTurn(const TurnArgs& args, cudaStream_t stream) {
  EPLB_RETURN_IF_ERROR(CheckTurnArgs(args));
  if (args.choices.num_tokens == 0) return absl::OkStatus();
  return Launch("turn", stream, {.run = [args](int64_t) { RunTurn(args); }});
}

absl::Status LaunchQuotaRoute(const QuotaRouteArgs& args, cudaStream_t stream) {
  EPLB_RETURN_IF_ERROR(CheckQuotaRouteArgs(args));
  if (args.choices.num_tokens == 0) return absl::OkStatus();
  return Launch("quota route", stream, {.run = [args](int64_t) { RunQuotaRoute(args); }});
}

absl::Status LaunchSplitExchange(const SplitExchangeArgs& args, cudaStream_t stream) {
  EPLB_RETURN_IF_ERROR(CheckSplitExchangeArgs(args));
  return Launch("split exchange", stream, {.run = [args](int64_t) { RunSplitExchange(args); }});
}

absl::Status LaunchSplitNote(const SplitNoteArgs& args, cudaStream_t stream) {
  EPLB_RETURN_IF_ERROR(CheckSplitNoteArgs(args));
  return Launch("split exchange", stream, {.run = [args](int64_t) { RunSplitNote(args); }});
}

absl::Status LaunchSplit(const SplitArgs& args, cudaStream_t stream) {
  EPLB_RETURN_IF_ERROR(CheckSplitArgs(args));
  if (args.num_layers == 0) return absl::OkStatus();
  return Launch("split", stream, {.run = [args](int64_t) { RunSplit(args); }});
}

absl::Status LaunchCopyRows(const CopyArgs& args, int32_t, cudaStream_t stream) {
  if (args.num_rows == 0) return absl::OkStatus();
  if (args.checksums != nullptr && !args.checksums_are_zero) {
    EPLB_RETURN_IF_ERROR(
        ToStatus(cudaMemsetAsync(args.checksums, 0, sizeof(uint64_t) * args.num_rows, stream),
                 "cudaMemsetAsync"));
  }
  return Launch("copy", stream,
                {.size = args.num_tiles, .run = [args](int64_t tile) { RunCopyTile(args, tile); }});
}

absl::Status LaunchAddRows(const AddArgs& args, int32_t, cudaStream_t stream) {
  if (args.num_rows == 0) return absl::OkStatus();
  return Launch("add", stream,
                {.size = args.num_tiles, .run = [args](int64_t tile) { RunAddTile(args, tile); }});
}

absl::Status LaunchSquareRows(const SquareArgs& args, cudaStream_t stream) {
  if (args.num_rows == 0) return absl::OkStatus();
  return Launch("squares", stream,
                {.size = args.num_rows, .run = [args](int64_t row) { RunSquareRow(args, row); }});
}

absl::Status LoadCopyKernels() { return Load("copy"); }
absl::Status LoadAddKernels() { return Load("add"); }
absl::Status LoadSquareKernels() { return Load("squares"); }
absl::Status LoadCountKernels() { return Load("count"); }
absl::Status LoadTurnKernels() { return Load("turn"); }
absl::Status LoadRouteKernels() { return Load("route"); }
absl::Status LoadQuotaRouteKernels() { return Load("quota route"); }
absl::Status LoadSplitKernels() { return Load("split"); }
absl::Status LoadSplitExchangeKernels() { return Load("split exchange"); }

}  // namespace eplb::cuda

namespace eplb::fake_cuda {

int64_t NumUnloadedLaunches() {
  const std::lock_guard<std::recursive_mutex> lock(Mutex());
  return cuda::TheLoading().num_unloaded_launches;
}

}  // namespace eplb::fake_cuda
