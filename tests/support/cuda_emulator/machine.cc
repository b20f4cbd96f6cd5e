#include "tests/support/cuda_emulator/machine.h"

#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <bit>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "absl/strings/str_cat.h"

#include "tests/support/cuda_emulator/fiber.h"
#include "tests/support/cuda_emulator/launch_order.h"
#include "tests/support/cuda_emulator/memory.h"
#include "tests/support/cuda_emulator/race.h"

namespace eplb::cuda_emulator {

const Position* current_position = nullptr;
constinit thread_local Runner* current_runner = nullptr;

namespace {

constexpr int kMaxThreads = 1024;  // threads of a block
constexpr int kMaxBlocks = 2;      // blocks that run at once
constexpr int kMaxWarps = kMaxBlocks * kMaxThreads / kWarpLanes;
static_assert(kMaxWarps == 64, "a bit of a word each");
constexpr uint64_t kUndefined = 0xDEADBEEFDEADBEEF;  // result of a shuffle from an absent lane

struct Block;

struct Thread {
  Fiber fiber;
  Position position;
  Runner runner;
  Block* block = nullptr;
  int32_t number = 0;  // in its block
  int32_t warp = 0;    // in the machine
  WarpCall call;       // call that it waits in
  uint64_t result = 0;
};

// Lanes, a bit each.
struct WarpState {
  uint32_t alive = 0;
  uint32_t ready = 0;
};

struct Block {
  std::array<std::unique_ptr<Thread>, kMaxThreads> threads;
  int32_t first_warp = 0;  // in the machine
  int32_t num_alive = 0;
  int32_t num_waiting = 0;      // at the barrier
  BarrierPlace where;           // the barrier
  std::byte* shared = nullptr;  // kMostSharedBytes, a page without access behind
  size_t static_bytes = 0;
  std::map<const void*, std::byte*> statics;
};

struct Machine {
  std::string_view kernel;
  const LaunchShape* shape = nullptr;
  const std::function<void()>* body = nullptr;
  std::string error;
  Fiber main;
  Thread* current = nullptr;
  std::array<Block, kMaxBlocks> blocks;
  std::array<WarpState, kMaxWarps> warps;
  std::array<Block*, kMaxWarps> block_of_warp{};
  uint64_t ready_warps = 0;
  std::vector<uint32_t> order;  // the blocks that are left
  uint32_t first_block = 0;     // serial number of the launch's first block
  // The order of warps.
  uint64_t seed = 0;
  std::mt19937_64 random;
  std::array<int, kMaxWarps> bit_of_warp{};
  std::array<int, kMaxWarps> warp_of_bit{};
  int starved_bit = 0;
  int first_lane = 0;
};

Machine& Self() {
  static auto* const machine = new Machine();
  return *machine;
}

int32_t NumThreads() {
  const dim3& block = Self().shape->block;
  return static_cast<int32_t>(block.x * block.y * block.z);
}
int32_t NumWarps() { return (NumThreads() + kWarpLanes - 1) / kWarpLanes; }

int LaneOf(const Thread& thread) { return thread.number % kWarpLanes; }

Thread& ThreadAt(int32_t warp, int lane) {
  Block& block = *Self().block_of_warp[static_cast<size_t>(warp)];
  const int32_t number = (warp - block.first_warp) * kWarpLanes + lane;
  return *block.threads[static_cast<size_t>(number)];
}

// Thrown through a kernel, so that what its stack owns is freed.
struct LaunchFailed {};

void SetError(std::string_view what) {
  Machine& machine = Self();
  const Position& at = machine.current->position;
  machine.error = absl::StrCat(std::string(machine.kernel), ", block (", at.block.x, ", ",
                               at.block.y, ", ", at.block.z, "), thread (", at.thread.x, ", ",
                               at.thread.y, ", ", at.thread.z, "): ", std::string(what));
}

// ---- who runs next ----

void SetReady(int32_t warp, uint32_t lanes) {
  Machine& machine = Self();
  machine.warps[static_cast<size_t>(warp)].ready |= lanes;
  machine.ready_warps |= uint64_t{1} << machine.bit_of_warp[static_cast<size_t>(warp)];
}

void SetWaiting(const Thread& thread) {
  Machine& machine = Self();
  uint32_t& ready = machine.warps[static_cast<size_t>(thread.warp)].ready;
  ready &= ~(uint32_t{1} << LaneOf(thread));
  if (ready == 0) {
    machine.ready_warps &= ~(uint64_t{1} << machine.bit_of_warp[static_cast<size_t>(thread.warp)]);
  }
}

// A set bit: the first one from `from` on, round.
template <class Bits>
int BitFrom(Bits bits, int from) {
  return (std::countr_zero(std::rotr(bits, from)) + from) % (8 * static_cast<int>(sizeof(Bits)));
}

// Null: no thread is ready. fair: any thread, whatever the order of warps.
Thread* PickThread(bool fair = false) {
  Machine& machine = Self();
  uint64_t bits = machine.ready_warps;
  if (bits == 0) return nullptr;
  constexpr uint64_t kPolicies = 3;
  const uint64_t policy = machine.seed % kPolicies;
  int first_lane = machine.first_lane;
  int bit = std::countr_zero(bits);
  if (policy != 2 || fair) {  // otherwise the one of highest priority, as far as it comes
    const uint64_t draw = machine.random();
    const uint64_t others = bits & ~(uint64_t{1} << machine.starved_bit);
    if (policy == 1 && others != 0 && !fair) bits = others;
    bit = BitFrom(bits, static_cast<int>(draw % 64));
    first_lane = static_cast<int>(draw >> 8) % kWarpLanes;
  }
  const int warp = machine.warp_of_bit[static_cast<size_t>(bit)];
  const int lane = BitFrom(machine.warps[static_cast<size_t>(warp)].ready,
                           (first_lane + kWarpLanes) % kWarpLanes);
  return &ThreadAt(warp, lane);
}

void SwitchToMain() {
  Machine& machine = Self();
  Fiber::Switch(machine.current->fiber, machine.main);
}

void SetCurrent(Thread* thread) {
  Self().current = thread;
  current_position = thread == nullptr ? nullptr : &thread->position;
  current_runner = thread == nullptr ? nullptr : &thread->runner;
}

// Goes on with a thread that is ready: returns when that is the caller again.
void Reschedule(bool fair = false) {
  CheckWrites();
  Thread* const here = Self().current;
  Thread* const next = PickThread(fair);
  if (next == nullptr) return SwitchToMain();
  if (next == here) return;
  SetCurrent(next);
  Fiber::Switch(here->fiber, next->fiber);
}

// ---- what threads wait for ----

std::string Where(const BarrierPlace& where) { return absl::StrCat(where.file, ":", where.line); }

// Explains a block none of whose threads can continue.
std::string WhyStuck(const Block& block) {
  const int32_t num_ended = NumThreads() - block.num_alive;
  const int32_t num_in_warp_calls = block.num_alive - block.num_waiting;
  std::string text =
      absl::StrCat(block.num_waiting, " of ", NumThreads(), " threads wait at the barrier");
  if (block.num_waiting > 0) absl::StrAppend(&text, " of ", Where(block.where));
  return absl::StrCat(text, ", ", num_in_warp_calls, " in warp operations, ", num_ended,
                      " have ended");
}

uint64_t Reduced(WarpOperation operation, uint64_t a, uint64_t b) {
  switch (operation) {
    case WarpOperation::kAdd:
      return a + b;
    case WarpOperation::kMin:
      return static_cast<int64_t>(a) < static_cast<int64_t>(b) ? a : b;
    case WarpOperation::kMax:
      return static_cast<int64_t>(a) > static_cast<int64_t>(b) ? a : b;
    case WarpOperation::kAnd:
      return a & b;
    case WarpOperation::kOr:
      return a | b;
    default:
      return a ^ b;
  }
}

uint64_t ResultOf(int32_t warp, uint32_t lanes, const WarpCall& call) {
  if (call.operation == WarpOperation::kShuffle) {
    const bool is_there = (lanes >> call.source & 1) != 0;
    return is_there ? ThreadAt(warp, call.source).call.value : kUndefined;
  }
  uint64_t result = 0;
  for (uint32_t left = lanes; left != 0; left &= left - 1) {
    const int lane = std::countr_zero(left);
    const uint64_t value = ThreadAt(warp, lane).call.value;
    if (call.operation == WarpOperation::kMatch) {
      if (value == call.value) result |= uint64_t{1} << lane;
    } else {
      result = left == lanes ? value : Reduced(call.operation, result, value);
    }
  }
  return result;
}

// The call of a warp whose lanes have all come, and their results. Only __syncwarp orders memory.
void CompleteWarpCall(int32_t warp, uint32_t lanes) {
  std::array<Clock*, kWarpLanes> clocks{};
  size_t num_lanes = 0;
  for (uint32_t left = lanes; left != 0; left &= left - 1) {
    Thread& thread = ThreadAt(warp, std::countr_zero(left));
    clocks[num_lanes++] = &thread.runner.clock;
    if (thread.call.operation == WarpOperation::kSync) continue;
    thread.result = ResultOf(warp, lanes, thread.call);
  }
  if (ThreadAt(warp, std::countr_zero(lanes)).call.operation == WarpOperation::kSync) {
    Clock::JoinLanes({clocks.data(), num_lanes});
  }
  for (uint32_t left = lanes; left != 0; left &= left - 1) {
    ThreadAt(warp, std::countr_zero(left)).call.operation = WarpOperation::kNone;
  }
  SetReady(warp, lanes);
}

// Completes the call that `thread` waits in once all its lanes wait in it. False: they do not yet.
bool TryWarpCall(const Thread& thread) {
  const WarpCall call = thread.call;
  const uint32_t lanes = call.mask & Self().warps[static_cast<size_t>(thread.warp)].alive;
  for (uint32_t left = lanes; left != 0; left &= left - 1) {
    const WarpCall& other = ThreadAt(thread.warp, std::countr_zero(left)).call;
    if (other.operation == WarpOperation::kNone) return false;
    if (other.operation == call.operation && other.mask == call.mask) continue;
    if ((other.mask >> LaneOf(thread) & 1) == 0) return false;
    Fail(absl::StrCat("lane ", std::countr_zero(left),
                      " is in another warp operation, or with mask ", absl::Hex(other.mask),
                      " where this one has ", absl::Hex(call.mask)));
  }
  CompleteWarpCall(thread.warp, lanes);
  return true;
}

// A thread has ended: those that wait for its lane may not wait any more.
void CompleteCallsOfWarp(int32_t warp) {
  for (uint32_t left = Self().warps[static_cast<size_t>(warp)].alive; left != 0; left &= left - 1) {
    const Thread& thread = ThreadAt(warp, std::countr_zero(left));
    if (thread.call.operation != WarpOperation::kNone) TryWarpCall(thread);
  }
}

void CheckBarrier(const Block& block) {
  if (block.num_waiting > 0 && block.num_alive < NumThreads() &&
      block.num_waiting == block.num_alive) {
    Fail(absl::StrCat("some threads never reach a barrier: ", WhyStuck(block)));
  }
}

// Orders memory at a barrier that all threads have reached.
void JoinClocks(Block& block) {
  std::array<Clock*, kMaxThreads> clocks{};
  const auto num_threads = static_cast<size_t>(NumThreads());
  for (size_t i = 0; i < num_threads; ++i) clocks[i] = &block.threads[i]->runner.clock;
  Clock::JoinBlock({clocks.data(), num_threads});
}

// REQUIRES: its kernel has returned. Does not return itself.
void EndThread() {
  Machine& machine = Self();
  Thread& thread = *machine.current;
  CheckWrites();
  SetWaiting(thread);
  machine.warps[static_cast<size_t>(thread.warp)].alive &= ~(uint32_t{1} << LaneOf(thread));
  --thread.block->num_alive;
  CheckBarrier(*thread.block);
  CompleteCallsOfWarp(thread.warp);
  if (thread.block->num_alive == 0) SwitchToMain();
  Reschedule();
  std::abort();  // no thread switches to one that has ended
}

// The first function of a fiber.
void RunThread() {
  try {
    (*Self().body)();
    EndThread();
  } catch (const LaunchFailed&) {
  }
  SwitchToMain();
}

// ---- blocks ----

void DrawOrder() {
  Machine& machine = Self();
  for (int i = 0; i < kMaxWarps; ++i) machine.warp_of_bit[static_cast<size_t>(i)] = i;
  std::shuffle(machine.warp_of_bit.begin(), machine.warp_of_bit.end(), machine.random);
  for (int i = 0; i < kMaxWarps; ++i) {
    machine.bit_of_warp[static_cast<size_t>(machine.warp_of_bit[static_cast<size_t>(i)])] = i;
  }
  const auto starved = static_cast<size_t>(machine.random() % static_cast<uint64_t>(NumWarps()));
  machine.starved_bit = machine.bit_of_warp[starved];
  machine.first_lane = static_cast<int>(machine.random() % kWarpLanes);
}

void ClearShared(Block& block) {
  if (block.shared == nullptr) {
    void* const memory = mmap(nullptr, kMostSharedBytes + kPage, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) std::abort();
    block.shared = static_cast<std::byte*>(memory);
    if (mprotect(block.shared + kMostSharedBytes, kPage, PROT_NONE) != 0) std::abort();
  }
  std::memset(block.shared, kUnwritten, kMostSharedBytes);
  block.static_bytes = 0;
  block.statics.clear();
}

uint3 PositionIn(const dim3& size, uint32_t index) {
  return {index % size.x, index / size.x % size.y, index / size.x / size.y};
}

void StartBlock(Block& block, uint32_t index) {
  Machine& machine = Self();
  const LaunchShape& shape = *machine.shape;
  ClearShared(block);
  block.num_alive = NumThreads();
  block.num_waiting = 0;
  for (int32_t number = 0; number < NumThreads(); ++number) {
    auto& thread = block.threads[static_cast<size_t>(number)];
    if (thread == nullptr) thread = std::make_unique<Thread>();
    thread->position = {.thread = PositionIn(shape.block, static_cast<uint32_t>(number)),
                        .block = PositionIn(shape.grid, index),
                        .block_dim = shape.block,
                        .grid_dim = shape.grid};
    thread->block = &block;
    thread->number = number;
    thread->warp = block.first_warp + number / kWarpLanes;
    thread->call = {};
    thread->runner.shared = block.shared;
    thread->runner.clock.Start(machine.first_block + index, static_cast<uint16_t>(number));
    thread->fiber.Start(&RunThread);
  }
  for (int32_t warp = 0; warp < NumWarps(); ++warp) {
    const int32_t left = NumThreads() - warp * kWarpLanes;
    const uint32_t lanes = left >= kWarpLanes ? ~uint32_t{0} : (uint32_t{1} << left) - 1;
    const int32_t in_machine = block.first_warp + warp;
    machine.block_of_warp[static_cast<size_t>(in_machine)] = &block;
    machine.warps[static_cast<size_t>(in_machine)] = {.alive = lanes};
    SetReady(in_machine, lanes);
  }
}

// Puts blocks where none runs. False: all have ended.
bool StartBlocks() {
  Machine& machine = Self();
  bool any = false;
  for (size_t i = 0; i < machine.blocks.size(); ++i) {
    Block& block = machine.blocks[i];
    if (block.num_alive == 0 && !machine.order.empty()) {
      block.first_warp = static_cast<int32_t>(i) * NumWarps();
      StartBlock(block, machine.order.back());
      machine.order.pop_back();
    }
    any = any || block.num_alive > 0;
  }
  return any;
}

// ---- what the processor finds ----

// A fault of a thread is an error of the launch; any other is the program's.
void OnFault(int signal, siginfo_t* info, void*) {
  if (Self().current != nullptr) {
    Stop(signal == SIGILL ? std::string("a misaligned access")
                          : absl::StrCat("an access to no memory at ",
                                         absl::Hex(reinterpret_cast<uintptr_t>(info->si_addr))));
  }
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

void CatchFaults() {
#if !defined(__SANITIZE_ADDRESS__)  // which tells more
  static std::array<std::byte, size_t{64} * 1024> stack;
  const stack_t alternative{.ss_sp = stack.data(), .ss_flags = 0, .ss_size = stack.size()};
  sigaltstack(&alternative, nullptr);
  struct sigaction action {};
  action.sa_sigaction = &OnFault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  for (const int signal : {SIGSEGV, SIGBUS, SIGILL}) sigaction(signal, &action, nullptr);
#endif
}

}  // namespace

std::string WhyNoLaunch(const LaunchShape& shape) {
  const dim3& block = shape.block;
  const dim3& grid = shape.grid;
  const uint64_t num_threads = uint64_t{block.x} * block.y * block.z;
  if (num_threads == 0 || num_threads > kMaxThreads || block.x > 1024 || block.y > 1024 ||
      block.z > 64) {
    return absl::StrCat(block.x, " x ", block.y, " x ", block.z, " threads a block, expected 1..",
                        kMaxThreads);
  }
  constexpr uint32_t kMaxGridX = 0x7fffffff;
  constexpr uint32_t kMaxGrid = 65535;
  if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > kMaxGridX || grid.y > kMaxGrid ||
      grid.z > kMaxGrid) {
    return absl::StrCat("a grid of ", grid.x, " x ", grid.y, " x ", grid.z,
                        " blocks, expected 1.. and at most 2^31 - 1, 65535 and 65535");
  }
  if (shape.shared_bytes > shape.most_shared_bytes) {
    return absl::StrCat(shape.shared_bytes, " bytes of shared memory, expected at most ",
                        shape.most_shared_bytes);
  }
  return "";
}

std::string RunBlocks(std::string_view kernel, const LaunchShape& shape,
                      const std::function<void()>& body) {
  static const bool catches = (CatchFaults(), true);
  (void)catches;
  Machine& machine = Self();
  machine.kernel = kernel;
  machine.shape = &shape;
  machine.body = &body;
  machine.error.clear();
  machine.ready_warps = 0;
  for (Block& block : machine.blocks) block.num_alive = 0;
  machine.order.resize(size_t{shape.grid.x} * shape.grid.y * shape.grid.z);
  for (size_t i = 0; i < machine.order.size(); ++i) machine.order[i] = static_cast<uint32_t>(i);
  std::shuffle(machine.order.begin(), machine.order.end(), machine.random);
  DrawOrder();
  const auto num_blocks = static_cast<uint32_t>(machine.order.size());
  machine.first_block = BeginLaunch(kernel, shape.stream, shape.programmatic, num_blocks);
  BeginRaceDetection(shape.programmatic);
  while (machine.error.empty() && StartBlocks()) {
    SetCurrent(PickThread());
    if (machine.current == nullptr) {
      const auto stuck = std::find_if(machine.blocks.begin(), machine.blocks.end(),
                                      [](const Block& block) { return block.num_alive > 0; });
      machine.current = stuck->threads[0].get();
      machine.error =
          absl::StrCat(std::string(kernel), ": no thread can go on: ", WhyStuck(*stuck));
      break;
    }
    Fiber::Switch(machine.main, machine.current->fiber);
  }
  SetCurrent(nullptr);
  if (!machine.error.empty()) return machine.error;
  const std::string damaged = WhatIsDamaged();
  return damaged.empty() ? "" : absl::StrCat(std::string(kernel), ": ", damaged);
}

void SetOrder(uint64_t seed) {
  Self().seed = seed;
  Self().random.seed(seed);
}

uint64_t RunWarpCall(const WarpCall& call) {
  Thread& thread = *Self().current;
  if ((call.mask >> LaneOf(thread) & 1) == 0) {
    Fail(absl::StrCat("the mask ", absl::Hex(call.mask), " of a warp operation lacks lane ",
                      LaneOf(thread), ", which calls it"));
  }
  thread.call = call;
  SetWaiting(thread);
  TryWarpCall(thread);
  Reschedule();
  return thread.result;
}

int32_t CurrentLane() { return LaneOf(*Self().current); }

void WaitForBlock(const BarrierPlace& where) {
  Thread& thread = *Self().current;
  Block& block = *thread.block;
  if (block.num_waiting == 0) {
    block.where = where;
  } else if (block.where.line != where.line || std::strcmp(block.where.file, where.file) != 0) {
    Fail(absl::StrCat("waits at the barrier of ", Where(where), " where others wait at that of ",
                      Where(block.where)));
  }
  ++block.num_waiting;
  SetWaiting(thread);
  CheckBarrier(block);
  if (block.num_waiting == NumThreads()) {
    block.num_waiting = 0;
    JoinClocks(block);
    for (int32_t warp = block.first_warp; warp < block.first_warp + NumWarps(); ++warp) {
      SetReady(warp, Self().warps[static_cast<size_t>(warp)].alive);
    }
  }
  Reschedule();
}

void MayYield() {
  constexpr uint64_t kOneIn = 64;
  if (Self().random() % kOneIn == 0) Reschedule();
}

void YieldToAll() {
  sched_yield();
  Reschedule(true);
}

void WaitForPredecessors() {
  NoteWait();
  Self().current->runner.clock.WaitForPredecessors();
}

void Fail(std::string_view what) {
  SetError(what);
  throw LaunchFailed();
}

void Stop(std::string_view what) {
  SetError(what);
  SwitchToMain();
  std::abort();  // no thread switches to one that has stopped
}

void CheckAccess(const void* address, size_t size, size_t alignment) {
  if (reinterpret_cast<uintptr_t>(address) % alignment != 0) {
    Fail(absl::StrCat("an access of ", size, " bytes is not aligned to ", alignment));
  }
  const Found found = Find(address, size);
  if (found.place != Place::kUnknown && !found.is_whole) {
    Fail(absl::StrCat("an access of ", size, " bytes goes beyond its allocation"));
  }
  if (found.place != Place::kUnknown) return;
  if (IsBetween(address)) Fail(absl::StrCat("an access of ", size, " bytes to no allocation"));
  const Thread& thread = *Self().current;
  const auto* const at = static_cast<const std::byte*>(address);
  const std::byte* const shared = thread.block->shared;
  if (at >= shared && at + size <= shared + kMostSharedBytes) return;
  if (!thread.fiber.Has(address)) Fail("an access to memory of the host");
}

void CheckLaunchBounds(int32_t most_threads) {
  if (NumThreads() > most_threads) {
    Fail(absl::StrCat(NumThreads(), " threads a block, __launch_bounds__ says ", most_threads));
  }
}

std::byte* DynamicSharedMemory() {
  const size_t size = (Self().shape->shared_bytes + 15) / 16 * 16;
  return Self().current->block->shared + kMostSharedBytes - size;
}

std::byte* StaticSharedMemory(const void* key, size_t size, size_t alignment) {
  Block& block = *Self().current->block;
  std::byte*& memory = block.statics[key];
  if (memory == nullptr) {
    block.static_bytes = (block.static_bytes + alignment - 1) / alignment * alignment;
    memory = block.shared + block.static_bytes;
    block.static_bytes += size;
    if (block.static_bytes + Self().shape->shared_bytes > Self().shape->most_shared_bytes) {
      Fail(absl::StrCat("the block needs ", block.static_bytes + Self().shape->shared_bytes,
                        " bytes of shared memory, it has ", Self().shape->most_shared_bytes));
    }
  }
  return memory;
}

}  // namespace eplb::cuda_emulator
