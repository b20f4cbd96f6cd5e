// Sends a small row between every pair of ranks.
#include "client/rows/transport_trial.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <utility>

#include "base/status_macros.h"
#include "client/rows/row_message.h"

namespace eplb {
namespace {

constexpr int64_t kTrialRowBytes = int64_t{64} * 1024;

// Makes a row of bytes that no other rank has, and that memory does not have by chance.
absl::StatusOr<cuda::RowBuffer> MakeTrialRow(cuda::RowQueue& queue, int64_t num_bytes,
                                             const TrialOptions& options) {
  EPLB_ASSIGN_OR_RETURN(const cuda::RowBuffer pattern, queue.AllocatePinned(num_bytes));
  std::mt19937 random(static_cast<uint32_t>(options.self.value) + 1);
  for (std::byte& byte : pattern.bytes) byte = static_cast<std::byte>(random());
  EPLB_ASSIGN_OR_RETURN(cuda::RowBuffer row, queue.Allocate(num_bytes));
  const cuda::RowCopy copy{
      .source = pattern.bytes.data(), .destination = row.bytes.data(), .num_bytes = num_bytes};
  EPLB_ASSIGN_OR_RETURN(const int64_t batch, queue.Transfer({&copy, 1}));
  EPLB_RETURN_IF_ERROR(AwaitBatch(queue, batch, options.deadline));
  return row;
}

absl::Status PostAndWait(Transport& transport, RowMoves moves) {
  EPLB_ASSIGN_OR_RETURN(const Ticket ticket, transport.Post(std::move(moves)));
  while (true) {
    const absl::StatusOr<Progress> progress = transport.Poll(ticket, absl::Milliseconds(100));
    if (!progress.ok()) {
      (void)transport.Abort();  // the error of Poll has the cause
      return progress.status();
    }
    if (progress->done) return absl::OkStatus();
  }
}

}  // namespace

absl::Status BringUp(Transport& transport, absl::Time deadline) {
  return PostAndWait(transport, {.deadline = deadline});
}

absl::Status TryPairs(Transport& transport, cuda::RowQueue& queue, const TrialOptions& options) {
  const auto num_ranks = static_cast<int32_t>(options.ranks.size());
  const auto self =
      static_cast<int32_t>(std::ranges::find(options.ranks, options.self) - options.ranks.begin());
  const auto room =
      static_cast<int64_t>(transport.staging().size()) / std::max(num_ranks - 1, 1) / 64 * 64;
  const int64_t num_bytes = std::min(kTrialRowBytes, room);
  if (num_ranks < 2 || num_bytes == 0) return BringUp(transport, options.deadline);
  EPLB_ASSIGN_OR_RETURN(const cuda::RowBuffer row, MakeTrialRow(queue, num_bytes, options));
  RowMoves moves{.deadline = options.deadline};
  for (int32_t distance = 1; distance < num_ranks; ++distance) {
    const int64_t offset = (distance - 1) * num_bytes;
    const auto rank_at = [&](int32_t index) {
      return options.ranks[static_cast<size_t>(index % num_ranks)];
    };
    moves.sends.push_back({.to = rank_at(self + distance),
                           .row = distance,
                           .round = distance - 1,
                           .bytes = row.bytes,
                           .staging_offset = offset});
    moves.receives.push_back({.from = rank_at(self + num_ranks - distance),
                              .row = distance,
                              .round = distance - 1,
                              .staging_offset = offset,
                              .num_bytes = num_bytes});
  }
  return PostAndWait(transport, std::move(moves));
}

}  // namespace eplb
