#include "client/split_loop.h"

#include <sys/prctl.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <span>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "base/errors.h"
#include "base/monotonic_clock.h"
#include "base/status_macros.h"
#include "client/session/log_line.h"
#include "client/tokens.h"
#include "cuda/count.h"
#include "cuda/split.h"
#include "placement/split/split_scratch.h"

#ifdef EPLB_WITH_CUDA
#include "cuda/runtime.h"
#endif

namespace eplb {
namespace {

constexpr absl::Duration kMinSplitDeadline = absl::Microseconds(1);
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

absl::Status CheckSetup(const SplitSetup& setup) {
  if (setup.top_k < 1) {
    return InvalidInput("setup.top_k is ", setup.top_k, ", expected at least 1");
  }
  if (setup.max_tokens < 1 || setup.max_tokens > cuda::kMostChoices / setup.top_k) {
    return InvalidInput("setup.max_tokens is ", setup.max_tokens, ", expected 1..",
                        cuda::kMostChoices / setup.top_k, " with a top_k of ", setup.top_k);
  }
  if (setup.deadline >= kMinSplitDeadline && setup.deadline <= kMaxSplitDeadline) {
    return absl::OkStatus();
  }
  return InvalidInput("setup.deadline_s is ", absl::ToDoubleSeconds(setup.deadline), ", expected ",
                      absl::ToDoubleSeconds(kMinSplitDeadline), "..",
                      absl::ToDoubleSeconds(kMaxSplitDeadline));
}

bool ShareMemory(const void* one, int64_t one_bytes, const void* other, int64_t other_bytes) {
  const auto a = reinterpret_cast<uintptr_t>(one);
  const auto b = reinterpret_cast<uintptr_t>(other);
  return a < b + static_cast<uintptr_t>(other_bytes) && b < a + static_cast<uintptr_t>(one_bytes);
}

// A row is cleared before the choices are read and the counters are added to.
absl::Status CheckRow(const cuda::CountArgs& choices, const int64_t* row) {
  constexpr int64_t kWord = sizeof(int64_t);
  const int64_t id_bytes = choices.id_type == cuda::ExpertIdType::kInt64 ? 8 : 4;
  struct Array {
    const char* name;
    const void* base;
    int64_t num_bytes;
  };
  for (const auto& [name, base, num_bytes] :
       {Array{"expert_ids", choices.expert_ids, id_bytes * choices.num_tokens * choices.top_k},
        Array{"is_padding", choices.is_padding, choices.num_tokens},
        Array{"counters", choices.counts, kWord * (choices.num_experts + 1)}}) {
    if (base == nullptr || !ShareMemory(row, kWord * choices.num_experts, base, num_bytes)) {
      continue;
    }
    return InvalidInput("row shares memory with choices.", name, ", expected one apart from it");
  }
  return absl::OkStatus();
}

// Checks that the kernels of the loop take the topology, so that no launch refuses it.
absl::Status CheckKernels(const SplitSetup& setup, const Topology& topology) {
  const int32_t num_experts = topology.num_experts();
  if (cuda::HistogramBytes(num_experts) == 0 ||
      cuda::ChooseQuotaRouteGrid(num_experts, topology.num_slots()).warps == 0) {
    return InvalidInput("count_for and route_from of ", num_experts, " experts in ",
                        topology.num_slots(),
                        " slots on a GPU, whose tables exceed the shared memory of ",
                        cuda::kMaxSharedBytes, " bytes");
  }
  if (!setup.split_on_gpu) return absl::OkStatus();
  return CheckSplitOnGpu(topology, setup.max_tokens * setup.top_k * topology.num_gpus());
}

#ifdef EPLB_WITH_CUDA
bool Captures(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  return cudaStreamIsCapturing(stream, &status) != cudaSuccess ||
         status != cudaStreamCaptureStatusNone;
}
#endif

// Leaves a core's other thread the turns that a spin would take.
void PauseSpin() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
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
  EPLB_RETURN_IF_ERROR(CheckSetup(setup));
  if (parts.device.has_value()) EPLB_RETURN_IF_ERROR(CheckKernels(setup, parts.topology));
  std::unique_ptr<SplitLoop> loop(new SplitLoop(setup, parts));
  EPLB_RETURN_IF_ERROR(loop->Allocate());
  const bool kernel_splits = parts.device.has_value() && setup.split_on_gpu;
  for (bool more = !kernel_splits; more;) {
    EPLB_ASSIGN_OR_RETURN(more, parts.splits.PrepareNext());
  }
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
  auto* const numbers = TakeAligned<int64_t>(memory, 2 * layers_.size());
  number_ = TakeAligned<int64_t>(memory, 1);
  drawn_ = TakeAligned<int64_t>(memory, 1);
  out_of_range_ = TakeAligned<int64_t>(memory, 1);
  auto* const tables = TakeAligned<int64_t>(shared, layers_.size());
  auto* const drawn = TakeAligned<int64_t>(shared, layers_.size());
  auto* const asked = TakeAligned<int64_t>(shared, layers_.size());
  auto* const late = TakeAligned<int64_t>(shared, layers_.size());
  auto* const done = TakeAligned<int64_t>(shared, layers_.size());
  auto* const answered = TakeAligned<int64_t>(shared, layers_.size());
  for (size_t layer = 0; layer < layers_.size(); ++layer) {
    Layer& at = layers_[layer];
    at.chunk_counts = TakeAligned<int32_t>(memory, num_chunk_counts);
    at.own = TakeAligned<int64_t>(memory, num_slots_);
    at.numbers = numbers + 2 * layer;
    at.mailbox = {.counts = TakeAligned<int64_t>(shared, num_counts),
                  .tables = tables + layer,
                  .drawn = drawn + layer,
                  .asked = asked + layer,
                  .late = late + layer,
                  .done = done + layer,
                  .answer = TakeAligned<int64_t>(shared, kernel_splits ? 0 : num_slots_),
                  .answered = answered + layer};
    if (!kernel_splits) continue;
    at.quotas = TakeAligned<int64_t>(memory, num_slots_);
    at.refused = TakeAligned<int32_t>(memory, 1);
    at.note = TakeAligned<int64_t>(
        shared, static_cast<size_t>(cuda::NoteWords(parts_.topology.num_slots())));
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
  // The numbers begin at 0. They are the first arrays, and as many zeros are in the shared memory.
  const cuda::RowCopy zeros{
      .source = shared_.bytes.data(),
      .destination = memory_.bytes.data(),
      .num_bytes = reinterpret_cast<std::byte*>(drawn_ + 1) - memory_.bytes.data()};
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
  EPLB_RETURN_IF_ERROR(CheckRow(choices, row));
  Layer& at = layers_[static_cast<size_t>(layer)];
  cuda::CountArgs counted = choices;
  counted.counts = row;
  counted.out_of_range = out_of_range_;
  at.is_counted = false;  // until all is well
  const auto row_bytes = static_cast<size_t>(choices.num_experts) * sizeof(int64_t);
#ifdef EPLB_WITH_CUDA
  if (parts_.device.has_value()) {
    counted.chunk_counts = at.chunk_counts;
    EPLB_ASSIGN_OR_RETURN(const cuda::DeviceGuard guard, cuda::DeviceGuard::Make(*parts_.device));
    auto* const order = static_cast<cudaStream_t>(stream);
    EPLB_RETURN_IF_ERROR(
        cuda::ToStatus(cudaMemsetAsync(row, 0, row_bytes, order), "cudaMemsetAsync"));
    EPLB_RETURN_IF_ERROR(cuda::LaunchCount(counted, order));
    if (choices.counts != nullptr) EPLB_RETURN_IF_ERROR(cuda::LaunchCount(choices, order));
  }
#endif
  if (!parts_.device.has_value()) {
    std::memset(row, 0, row_bytes);
    EPLB_RETURN_IF_ERROR(cuda::CountOnHost(counted));
    if (choices.counts != nullptr) EPLB_RETURN_IF_ERROR(cuda::CountOnHost(choices));
  }
  at.choices = counted;
  at.is_counted = true;
  return absl::OkStatus();
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
          .beyond = drawn_,
          .first_token = parts_.self.value * setup_.max_tokens};
}

absl::Status SplitLoop::RouteFrom(int32_t layer, const int64_t* gathered, void* slots,
                                  void* stream) {
  EPLB_RETURN_IF_ERROR(CheckPlace(parts_.tables, layer, parts_.tables.num_experts));
  Layer& at = layers_[static_cast<size_t>(layer)];
  if (!at.is_counted) {
    return FailedPrecondition("route_from of layer ", layer,
                              " was called before its count_for, which each call needs");
  }
  if (gathered == nullptr) return InvalidInput("gathered is NULL");
  if (at.choices.num_tokens > 0) {
    if (slots == nullptr) return InvalidInput("slots is NULL");
    EPLB_RETURN_IF_ERROR(CheckApart(at.choices, slots));
  }
  EPLB_RETURN_IF_ERROR(Route(layer, gathered, slots, stream));
  at.is_counted = false;  // the slots may have replaced the ids
  return absl::OkStatus();
}

absl::Status SplitLoop::Route(int32_t layer, const int64_t* gathered, void* slots,
                              [[maybe_unused]] void* stream) {
  const cuda::QuotaRouteArgs route = RouteArgsOf(layer, slots);
  const bool is_empty = route.choices.num_tokens == 0;  // other ranks may have tokens
#ifdef EPLB_WITH_CUDA
  if (parts_.device.has_value()) {
    EPLB_ASSIGN_OR_RETURN(const cuda::DeviceGuard guard, cuda::DeviceGuard::Make(*parts_.device));
    auto* const order = static_cast<cudaStream_t>(stream);
    EPLB_RETURN_IF_ERROR(LaunchOwn(layer, gathered, order));
    if (!Captures(order)) ++layers_[static_cast<size_t>(layer)].launched;
    return is_empty ? absl::OkStatus() : cuda::LaunchQuotaRoute(route, order);
  }
#endif
  Layer& at = layers_[static_cast<size_t>(layer)];
  const auto placement = Split(layer, {gathered, num_counts_}, {at.own, num_slots_},
                               /*tables=*/std::nullopt);
  if (!is_empty) EPLB_RETURN_IF_ERROR(cuda::QuotaRouteOnHost(route));
  const absl::MutexLock lock(&mutex_);
  if (placement != nullptr) AddSums(layer, quotas_, *placement);
  cuda::StoreShared(at.mailbox.asked, ++at.launched);
  cuda::StoreShared(at.mailbox.done, at.launched);
  cuda::StoreShared(at.mailbox.drawn, *drawn_);
  return absl::OkStatus();
}

#ifdef EPLB_WITH_CUDA
absl::Status SplitLoop::LaunchOwn(int32_t layer, const int64_t* gathered, cudaStream_t stream) {
  if (gpu_tables_ != nullptr) return LaunchKernelSplit(layer, gathered, stream);
  const Layer& at = layers_[static_cast<size_t>(layer)];
  return cuda::LaunchSplitExchange({.gathered = gathered,
                                    .tables = parts_.table_numbers + layer,
                                    .drawn = drawn_,
                                    .number = at.numbers,
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
                                .drawn = drawn_,
                                .number = number_,
                                .counts = at.numbers,
                                .note = at.note,
                                .num_slots = static_cast<int32_t>(num_slots_)},
                               stream);
}
#endif

std::shared_ptr<const Placement> SplitLoop::Split(int32_t layer, std::span<const int64_t> gathered,
                                                  std::span<int64_t> own,
                                                  std::optional<int64_t> tables) {
  const absl::StatusOr<SplitFigures> figures = parts_.splits.Split(
      LayerId{layer}, {.by_gpu = gathered}, {.self = parts_.self, .quotas = quotas_, .own = own});
  std::shared_ptr<const Placement> placement = parts_.splits.placement();
  // The tables are renewed before another placement is shown.
  const bool is_overtaken =
      tables.has_value() &&
      *tables != __atomic_load_n(parts_.newest_numbers + layer, __ATOMIC_ACQUIRE);
  const absl::MutexLock lock(&mutex_);
  if (figures.ok() && !is_overtaken) {
    figures_.newest = *figures;
    return placement;
  }
  ++figures_.refused;
  std::ranges::fill(own, cuda::kNoQuota);
  if (figures.ok() || std::exchange(has_logged_, true)) return nullptr;
  LogLine(absl::StrCat(
      "route_from draws slots, because a batch cannot be split: ", figures.status().message(),
      "; split_figures has the number of such batches"));
  return nullptr;
}

void SplitLoop::Run() {
  try {
    AnswerAll();
  } catch (const std::exception& error) {
    LogLine(absl::StrCat("the thread that splits batches has ended, and route_from draws slots: ",
                         error.what()));
  }
  for (const Layer& layer : layers_) cuda::StoreShared(layer.mailbox.answered, cuda::kNoAnswers);
}

void SplitLoop::AnswerAll() {
  (void)prctl(PR_SET_TIMERSLACK, 1);  // so that a nap is not twice as long
  absl::Time last = MonotonicNow();
  while (!stops_) {
    bool has_worked = false;
    for (int32_t layer = 0; layer < parts_.topology.num_layers(); ++layer) {
      has_worked = Answer(layer) || has_worked;
    }
    // After a switch; a layer that cannot be split refuses its batches.
    if (!has_worked) has_worked = parts_.splits.PrepareNext().value_or(true);
    const absl::Time now = MonotonicNow();
    if (has_worked) last = now;
    if (has_worked) continue;
    if (now - last > kSpins) {
      absl::SleepFor(kNap);
    } else {
      PauseSpin();
    }
  }
}

bool SplitLoop::Answer(int32_t layer) {
  Layer& at = layers_[static_cast<size_t>(layer)];
  const cuda::SplitMailbox& mailbox = at.mailbox;
  const int64_t number = cuda::LoadShared(mailbox.asked);
  if (number == at.answered) return false;
  // If the answer is late, the next batch overwrites the counts meanwhile, and no batch takes it.
  for (size_t i = 0; i < num_counts_; ++i) counts_[i] = cuda::LoadShared(mailbox.counts + i);
  const auto placement = Split(layer, counts_, own_, cuda::LoadShared(mailbox.tables));
  const absl::MutexLock lock(&mutex_);  // TakeSums after the answer waits for the sums
  for (size_t slot = 0; slot < num_slots_; ++slot) {
    cuda::StoreShared(mailbox.answer + slot, own_[slot]);
  }
  cuda::StoreShared(mailbox.answered, number);
  at.answered = number;
  if (placement != nullptr && number > at.taken) AddSums(layer, quotas_, *placement);
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
  } else {
    for (const Layer& layer : layers_) {
      figures.batches += cuda::LoadShared(layer.mailbox.asked);
      figures.late += cuda::LoadShared(layer.mailbox.late);
      figures.drawn = std::max(figures.drawn, cuda::LoadShared(layer.mailbox.drawn));
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
    figures.drawn = std::max(figures.drawn, cuda::LoadShared(note + cuda::kDrawn));
    const int64_t number = cuda::LoadShared(note + cuda::kNoted);
    if (number <= newest) continue;
    newest = number;
    newest_layer = layer;
  }
  if (newest > newest_note_) {
    const int64_t* const note = layers_[static_cast<size_t>(newest_layer)].note;
    const std::vector<int64_t> entry =
        ReadNote(newest_layer, cuda::LoadShared(note + cuda::kNewest) - 1);
    if (!entry.empty()) {
      const SplitFigures read =
          parts_.splits.FiguresOf(LayerId{newest_layer}, std::span(entry).subspan(1));
      // The tables are renewed before another placement is shown.
      if (entry.front() == gpu_tables_->newest()) {
        figures_.newest = read;
        newest_note_ = newest;
      }
    }
  }
  figures.newest = figures_.newest;
}

void SplitLoop::LogRefusal() {
  const absl::MutexLock lock(&mutex_);
  if (gpu_tables_ == nullptr || has_logged_) return;
  for (size_t layer = 0; layer < layers_.size(); ++layer) {
    if (cuda::LoadShared(layers_[layer].note + cuda::kRefused) == 0) continue;
    LogLine(absl::StrCat(
        "route_from draws slots, because the kernel cannot split a batch of layer ", layer,
        ": a count is negative, the counts sum to more than ", kMaxNarrowTokens,
        ", or an expert is on a GPU of speed 0; split_figures has the number of such batches"));
    has_logged_ = true;
    return;
  }
}

std::vector<int64_t> SplitLoop::ReadNote(int32_t layer, int64_t batch) const {
  int64_t* const note = layers_[static_cast<size_t>(layer)].note;
  const int64_t* const words = cuda::NoteEntry(note, batch, parts_.topology.num_slots());
  std::vector<int64_t> entry(1 + num_slots_);
  for (size_t i = 0; i < entry.size(); ++i) entry[i] = cuda::LoadShared(words + i);
  if (cuda::LoadShared(note + cuda::kBegun) > batch + cuda::kNotedBatches) return {};
  return entry;
}

void SplitLoop::AddSums(int32_t layer, std::span<const int64_t> quotas,
                        const Placement& placement) {
  if (!parts_.takes_sums) return;
  const absl::StatusOr<SplitSums> batch = SumsOfSplit(layer, quotas, placement);
  if (!batch.ok()) return;  // never, because the quotas are those of a split
  Layer& at = layers_[static_cast<size_t>(layer)];
  ++at.summed;
  at.sums.tokens += batch->tokens;
  at.sums.peak += batch->peak;
  at.sums.peak_static += batch->peak_static;
  at.sums.peak_without_eplb += batch->peak_without_eplb;
}

std::optional<SplitSums> SplitLoop::TakeSums(int32_t layer, const Placement& placement) {
  Layer& at = layers_[static_cast<size_t>(layer)];
  const absl::MutexLock lock(&mutex_);
  const bool is_noted = gpu_tables_ != nullptr;
  const int64_t done = cuda::LoadShared(is_noted ? at.note + cuda::kBatches : at.mailbox.done);
  const int64_t late = cuda::LoadShared(at.mailbox.late);
  const int64_t begun = cuda::LoadShared(is_noted ? at.note + cuda::kBegun : at.mailbox.asked);
  bool is_whole = done == begun && done >= at.launched && late == at.taken_late;
  for (int64_t batch = at.taken; is_noted && is_whole && batch < done; ++batch) {
    const std::vector<int64_t> entry = ReadNote(layer, batch);
    is_whole = !entry.empty() && entry.front() == gpu_tables_->uploaded();
    if (is_whole) AddSums(layer, std::span(entry).subspan(1), placement);
  }
  is_whole = is_whole && at.summed == done - at.taken;
  at.taken = std::max(begun, at.launched);
  at.taken_late = late;
  at.summed = 0;
  const SplitSums sums = std::exchange(at.sums, {});
  return is_whole ? std::optional(sums) : std::nullopt;
}

}  // namespace eplb
