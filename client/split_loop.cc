#include "client/split_loop.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "absl/time/clock.h"

#include "base/errors.h"
#include "base/monotonic_clock.h"
#include "base/status_macros.h"
#include "client/tokens.h"
#include "cuda/count.h"
#include "cuda/split.h"
#include "placement/split/split_scratch.h"

#ifdef EPLB_WITH_CUDA
#include "cuda/runtime.h"
#endif

namespace eplb {
namespace {

constexpr absl::Duration kMaxSplitDeadline = absl::Seconds(60);
constexpr absl::Duration kSettles = absl::Seconds(20);
// A layer's batches follow each other within milliseconds in a forward pass; between two passes the
// thread sleeps.
constexpr absl::Duration kSpins = absl::Milliseconds(2);
constexpr absl::Duration kNap = absl::Microseconds(50);
constexpr int64_t kBytesAligned = 64;  // arrays of the CPU and of the GPU share no cache line

// Takes an array that begins a cache line.
template <class Number>
Number* TakeAligned(Carver& carver, size_t count) {
  carver.Align(kBytesAligned);
  return carver.Take<Number>(static_cast<int64_t>(count));
}

absl::Status CheckSetup(const SplitSetup& setup, const Topology& topology) {
  const cuda::CountArgs largest{
      .expert_ids = &setup, .num_tokens = setup.max_tokens, .top_k = setup.top_k, .num_experts = 1};
  EPLB_RETURN_IF_ERROR(cuda::CheckChoices(largest));
  if (setup.max_tokens < 1) return InvalidInput("max_tokens is 0, expected at least 1");
  if (setup.split_on_gpu) {
    EPLB_RETURN_IF_ERROR(
        CheckSplitOnGpu(topology, setup.max_tokens * setup.top_k * topology.num_gpus()));
  }
  if (setup.deadline > absl::ZeroDuration() && setup.deadline <= kMaxSplitDeadline) {
    return absl::OkStatus();
  }
  return InvalidInput("deadline is ", absl::ToDoubleSeconds(setup.deadline),
                      " s, expected above 0 and at most ",
                      absl::ToDoubleSeconds(kMaxSplitDeadline));
}

}  // namespace

SplitLoop::SplitLoop(const SplitSetup& setup, const SplitLoopParts& parts)
    : setup_(setup),
      parts_(parts),
      num_counts_(static_cast<size_t>(parts.topology.num_gpus()) *
                  static_cast<size_t>(parts.topology.num_experts())),
      num_slots_(static_cast<size_t>(parts.topology.num_slots())),
      layers_(static_cast<size_t>(parts.topology.num_layers())),
      counts_(num_counts_),
      quotas_(num_slots_),
      own_(num_slots_) {}

absl::StatusOr<std::unique_ptr<SplitLoop>> SplitLoop::Make(const SplitSetup& setup,
                                                           const SplitLoopParts& parts) {
  EPLB_RETURN_IF_ERROR(CheckSetup(setup, parts.topology));
  std::unique_ptr<SplitLoop> loop(new SplitLoop(setup, parts));
  EPLB_RETURN_IF_ERROR(loop->Allocate());
  if (!parts.device.has_value()) return loop;
#ifdef EPLB_WITH_CUDA
  EPLB_ASSIGN_OR_RETURN(const cuda::DeviceGuard guard, cuda::DeviceGuard::Make(*parts.device));
  EPLB_RETURN_IF_ERROR(cuda::LoadCountKernels());
  EPLB_RETURN_IF_ERROR(cuda::LoadSplitExchangeKernels());
  EPLB_RETURN_IF_ERROR(cuda::LoadQuotaRouteKernels());
  if (setup.split_on_gpu) {
    EPLB_RETURN_IF_ERROR(cuda::LoadSplitKernels());
    EPLB_ASSIGN_OR_RETURN(loop->gpu_tables_, GpuSplitTables::Make(parts.splits, parts.queue));
    return loop;
  }
  loop->thread_ = std::thread([&it = *loop] { it.Run(); });
#endif
  return loop;
}

void SplitLoop::CarveLayers(Carver& memory, Carver& shared) {
  const auto num_experts = static_cast<size_t>(parts_.topology.num_experts());
  const auto most_choices = static_cast<uint32_t>(setup_.max_tokens * setup_.top_k);
  // In host memory the calls need neither these nor words.
  const bool on_gpu = parts_.device.has_value();
  const size_t num_chunk_counts =
      on_gpu ? num_experts * std::min(cuda::kMaxChunks, most_choices / cuda::kMinChunkChoices + 1)
             : 0;
  const bool kernel_splits = on_gpu && setup_.split_on_gpu;
  const size_t num_counts = on_gpu && !kernel_splits ? num_counts_ : 0;
  auto* const numbers = TakeAligned<int64_t>(memory, layers_.size());
  number_ = TakeAligned<int64_t>(memory, 1);
  out_of_range_ = TakeAligned<int64_t>(memory, 1);
  beyond_ = TakeAligned<int64_t>(memory, 1);
  auto* const asked = TakeAligned<int64_t>(shared, layers_.size());
  auto* const late = TakeAligned<int64_t>(shared, layers_.size());
  auto* const answered = TakeAligned<int64_t>(shared, layers_.size());
  for (size_t layer = 0; layer < layers_.size(); ++layer) {
    Layer& at = layers_[layer];
    at.chunk_counts = TakeAligned<int32_t>(memory, num_chunk_counts);
    at.own = TakeAligned<int64_t>(memory, num_slots_);
    at.number = numbers + layer;
    at.mailbox = {.counts = TakeAligned<int64_t>(shared, num_counts),
                  .asked = asked + layer,
                  .late = late + layer,
                  .answer = TakeAligned<int64_t>(shared, kernel_splits ? 0 : num_slots_),
                  .answered = answered + layer};
    if (!kernel_splits) continue;
    at.quotas = TakeAligned<int64_t>(memory, num_slots_);
    at.refused = TakeAligned<int32_t>(memory, 1);
    at.note = TakeAligned<int64_t>(shared, cuda::kQuotas + num_slots_);
  }
}

absl::Status SplitLoop::Allocate() {
  int64_t shared_size = 0;
  const int64_t memory_size = CarvedBytes([&](Carver& memory) {
    shared_size = CarvedBytes([&](Carver& shared) { CarveLayers(memory, shared); });
  });
  EPLB_ASSIGN_OR_RETURN(memory_, parts_.queue.Allocate(memory_size));
  EPLB_ASSIGN_OR_RETURN(shared_, parts_.queue.AllocatePinned(shared_size));
  std::memset(shared_.bytes.data(), 0, shared_.bytes.size());
  Carver memory(memory_.bytes.data());
  Carver shared(shared_.bytes.data());
  CarveLayers(memory, shared);
  // The numbers begin at 0. They are the first arrays, and as many zeros begin the shared memory.
  const cuda::RowCopy zeros{
      .source = shared_.bytes.data(),
      .destination = memory_.bytes.data(),
      .num_bytes = reinterpret_cast<std::byte*>(number_ + 1) - memory_.bytes.data()};
  EPLB_RETURN_IF_ERROR(parts_.queue.Transfer({&zeros, 1}).status());
  return parts_.queue.Drain(MonotonicNow() + kSettles);
}

absl::Status SplitLoop::CheckChoices(int32_t layer, const cuda::CountArgs& choices) const {
  EPLB_RETURN_IF_ERROR(CheckPlace(parts_.tables, layer, choices.num_experts));
  EPLB_RETURN_IF_ERROR(cuda::CheckChoices(choices));
  if (choices.num_tokens <= setup_.max_tokens && choices.top_k == setup_.top_k) {
    return absl::OkStatus();
  }
  return InvalidInput("choices of ", choices.num_tokens, " tokens x ", choices.top_k,
                      ", the split was prepared for at most ", setup_.max_tokens, " x ",
                      setup_.top_k);
}

absl::Status SplitLoop::CountFor(int32_t layer, const cuda::CountArgs& choices, int64_t* row,
                                 [[maybe_unused]] void* stream) {
  EPLB_RETURN_IF_ERROR(CheckChoices(layer, choices));
  if (row == nullptr) return InvalidInput("row is NULL");
  Layer& at = layers_[static_cast<size_t>(layer)];
  at.choices = choices;
  at.choices.counts = row;
  at.choices.out_of_range = out_of_range_;
  at.is_counted = true;
  const auto row_bytes = static_cast<size_t>(choices.num_experts) * sizeof(int64_t);
#ifdef EPLB_WITH_CUDA
  if (parts_.device.has_value()) {
    at.choices.chunk_counts = at.chunk_counts;
    EPLB_ASSIGN_OR_RETURN(const cuda::DeviceGuard guard, cuda::DeviceGuard::Make(*parts_.device));
    auto* const order = static_cast<cudaStream_t>(stream);
    EPLB_RETURN_IF_ERROR(
        cuda::ToStatus(cudaMemsetAsync(row, 0, row_bytes, order), "cudaMemsetAsync"));
    EPLB_RETURN_IF_ERROR(cuda::LaunchCount(at.choices, order));
    return choices.counts == nullptr ? absl::OkStatus() : cuda::LaunchCount(choices, order);
  }
#endif
  std::memset(row, 0, row_bytes);
  EPLB_RETURN_IF_ERROR(cuda::CountOnHost(at.choices));
  return choices.counts == nullptr ? absl::OkStatus() : cuda::CountOnHost(choices);
}

cuda::QuotaRouteArgs SplitLoop::RouteArgsOf(int32_t layer, void* slots) {
  const Layer& at = layers_[static_cast<size_t>(layer)];
  const DeviceTables& tables = parts_.tables;
  return {.choices = at.choices,
          .first_slot = tables.first_replica + int64_t{layer} * (tables.num_experts + 1),
          .replica_slot = tables.replicas + int64_t{layer} * tables.num_slots,
          .own = at.own,
          .num_slots = tables.num_slots,
          .slots = slots,
          .beyond = beyond_,
          .first_token = parts_.self.value * setup_.max_tokens};
}

absl::Status SplitLoop::RouteFrom(int32_t layer, const int64_t* gathered, void* slots,
                                  [[maybe_unused]] void* stream) {
  EPLB_RETURN_IF_ERROR(CheckPlace(parts_.tables, layer, parts_.tables.num_experts));
  Layer& at = layers_[static_cast<size_t>(layer)];
  if (!at.is_counted) {
    return FailedPrecondition("route_from of layer ", layer, " was called before its count_for");
  }
  if (gathered == nullptr) return InvalidInput("gathered is NULL");
  if (at.choices.num_tokens == 0) return absl::OkStatus();
  if (slots == nullptr) return InvalidInput("slots is NULL");
  EPLB_RETURN_IF_ERROR(CheckApart(at.choices, slots));
  const cuda::QuotaRouteArgs route = RouteArgsOf(layer, slots);
#ifdef EPLB_WITH_CUDA
  if (parts_.device.has_value()) {
    EPLB_ASSIGN_OR_RETURN(const cuda::DeviceGuard guard, cuda::DeviceGuard::Make(*parts_.device));
    auto* const order = static_cast<cudaStream_t>(stream);
    EPLB_RETURN_IF_ERROR(LaunchOwn(layer, gathered, order));
    return cuda::LaunchQuotaRoute(route, order);
  }
#endif
  Split(layer, {gathered, num_counts_}, {at.own, num_slots_});
  {
    const absl::MutexLock lock(&mutex_);
    ++figures_.batches;
  }
  return cuda::QuotaRouteOnHost(route);
}

#ifdef EPLB_WITH_CUDA
absl::Status SplitLoop::LaunchOwn(int32_t layer, const int64_t* gathered, cudaStream_t stream) {
  if (gpu_tables_ != nullptr) return LaunchKernelSplit(layer, gathered, stream);
  const Layer& at = layers_[static_cast<size_t>(layer)];
  return cuda::LaunchSplitExchange({.gathered = gathered,
                                    .number = at.number,
                                    .own = at.own,
                                    .mailbox = at.mailbox,
                                    .num_counts = static_cast<int32_t>(num_counts_),
                                    .num_slots = static_cast<int32_t>(num_slots_),
                                    .deadline_ns = absl::ToInt64Nanoseconds(setup_.deadline)},
                                   stream);
}

absl::Status SplitLoop::LaunchKernelSplit(int32_t layer, const int64_t* gathered,
                                          cudaStream_t stream) {
  const Layer& at = layers_[static_cast<size_t>(layer)];
  const int32_t num_gpus = parts_.topology.num_gpus();
  EPLB_RETURN_IF_ERROR(cuda::LaunchSplit({.shape = gpu_tables_->shape(),
                                          .tables = gpu_tables_->tables(),
                                          .first_layer = layer,
                                          .num_layers = 1,
                                          .counts = gathered,
                                          .num_sources = num_gpus,
                                          .quotas = at.quotas,
                                          .refused = at.refused,
                                          .own = at.own,
                                          .source = parts_.self.value,
                                          .gpus_of_node = num_gpus / parts_.topology.num_nodes()},
                                         stream));
  return cuda::LaunchSplitNote({.quotas = at.quotas,
                                .refused = at.refused,
                                .tables = gpu_tables_->number(),
                                .number = number_,
                                .note = at.note,
                                .num_slots = static_cast<int32_t>(num_slots_)},
                               stream);
}
#endif

void SplitLoop::Split(int32_t layer, std::span<const int64_t> gathered, std::span<int64_t> own) {
  const absl::StatusOr<SplitFigures> figures = parts_.splits.Split(
      LayerId{layer}, {.by_gpu = gathered}, {.self = parts_.self, .quotas = quotas_, .own = own});
  const absl::MutexLock lock(&mutex_);
  if (figures.ok()) {
    figures_.newest = *figures;
  } else {
    ++figures_.refused;
    std::ranges::fill(own, cuda::kNoQuota);
  }
}

void SplitLoop::Run() {
  absl::Time last = MonotonicNow();
  while (!stops_) {
    bool has_answered = false;
    for (int32_t layer = 0; layer < parts_.topology.num_layers(); ++layer) {
      has_answered = Answer(layer) || has_answered;
    }
    const absl::Time now = MonotonicNow();
    if (has_answered) last = now;
    if (now - last > kSpins) absl::SleepFor(kNap);
  }
}

bool SplitLoop::Answer(int32_t layer) {
  Layer& at = layers_[static_cast<size_t>(layer)];
  const cuda::SplitMailbox& mailbox = at.mailbox;
  const int64_t number = cuda::LoadShared(mailbox.asked);
  if (number == at.answered) return false;
  // A copy: if the answer is late, the next batch overwrites the counts.
  for (size_t i = 0; i < num_counts_; ++i) counts_[i] = cuda::LoadShared(mailbox.counts + i);
  if (cuda::LoadShared(mailbox.asked) != number) return true;
  Split(layer, counts_, own_);
  for (size_t slot = 0; slot < num_slots_; ++slot) {
    cuda::StoreShared(mailbox.answer + slot, own_[slot]);
  }
  cuda::StoreShared(mailbox.answered, number);
  at.answered = number;
  return true;
}

void SplitLoop::Stop() {
  stops_ = true;
  if (thread_.joinable()) thread_.join();
}

SplitLoopFigures SplitLoop::figures() const {
  const absl::MutexLock lock(&mutex_);
  SplitLoopFigures figures = figures_;
  if (gpu_tables_ != nullptr) {
    AddNotes(figures);
  } else if (parts_.device.has_value()) {
    for (const Layer& layer : layers_) {
      figures.batches += cuda::LoadShared(layer.mailbox.asked);
      figures.late += cuda::LoadShared(layer.mailbox.late);
    }
  }
  return figures;
}

void SplitLoop::AddNotes(SplitLoopFigures& figures) const {
  int64_t newest = newest_note_;
  int32_t newest_layer = 0;
  for (int32_t layer = 0; layer < parts_.topology.num_layers(); ++layer) {
    const int64_t* const note = layers_[static_cast<size_t>(layer)].note;
    figures.batches += cuda::LoadShared(note + cuda::kBatches);
    figures.refused += cuda::LoadShared(note + cuda::kRefused);
    const int64_t number = cuda::LoadShared(note + cuda::kNoted);
    if (number <= newest) continue;
    newest = number;
    newest_layer = layer;
  }
  if (newest > newest_note_) {
    if (std::optional<SplitFigures> read = ReadNote(newest_layer, newest); read.has_value()) {
      figures_.newest = *std::move(read);
      newest_note_ = newest;
    }
  }
  figures.newest = figures_.newest;
}

std::optional<SplitFigures> SplitLoop::ReadNote(int32_t layer, int64_t number) const {
  const int64_t* const note = layers_[static_cast<size_t>(layer)].note;
  const int64_t tables = cuda::LoadShared(note + cuda::kTables);
  std::vector<int64_t> quotas;
  for (size_t slot = 0; slot < num_slots_; ++slot) {
    quotas.push_back(cuda::LoadShared(note + cuda::kQuotas + slot));
  }
  if (cuda::LoadShared(note + cuda::kBegun) != number) return std::nullopt;
  SplitFigures figures = parts_.splits.FiguresOf(LayerId{layer}, quotas);
  // The tables are renewed before another placement is shown.
  if (tables != gpu_tables_->newest()) return std::nullopt;
  return figures;
}

}  // namespace eplb
