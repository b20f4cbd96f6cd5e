#include "tests/support/cuda_emulator/device_memory.h"

#include <chrono>

#include "tests/support/cuda_emulator/machine.h"
#include "tests/support/cuda_emulator/race.h"

namespace eplb::cuda_emulator {
namespace {

// Atomic, because the host may write a signal word at the same time.
Bits Read(const void* address, size_t size) {
  switch (size) {
    case 1:
      return __atomic_load_n(static_cast<const uint8_t*>(address), __ATOMIC_ACQUIRE);
    case 2:
      return __atomic_load_n(static_cast<const uint16_t*>(address), __ATOMIC_ACQUIRE);
    case 4:
      return __atomic_load_n(static_cast<const uint32_t*>(address), __ATOMIC_ACQUIRE);
    default:
      return __atomic_load_n(static_cast<const uint64_t*>(address), __ATOMIC_ACQUIRE);
  }
}

void Write(void* address, size_t size, Bits bits) {
  switch (size) {
    case 1:
      return __atomic_store_n(static_cast<uint8_t*>(address), bits, __ATOMIC_RELEASE);
    case 2:
      return __atomic_store_n(static_cast<uint16_t*>(address), bits, __ATOMIC_RELEASE);
    case 4:
      return __atomic_store_n(static_cast<uint32_t*>(address), bits, __ATOMIC_RELEASE);
    default:
      return __atomic_store_n(static_cast<uint64_t*>(address), bits, __ATOMIC_RELEASE);
  }
}

}  // namespace

Bits LoadWord(const void* address, size_t size, Order order, const void* place) {
  YieldToAll();
  CheckAccess(address, size, size);
  NoteKernelAccess(address, size, {.is_atomic = true}, place);
  current_runner->clock.Load(address, order);
  return Read(address, size);
}

void StoreWord(void* address, size_t size, Bits bits, Order order, const void* place) {
  CheckAccess(address, size, size);
  NoteKernelAccess(address, size, {.writes = true, .is_atomic = true}, place);
  current_runner->clock.Store(address, order);
  Write(address, size, bits);
}

Bits UpdateWord(void* address, size_t size, Bits operand, Bits (*next)(Bits before, Bits operand),
                Order order, const void* place) {
  MayYield();
  CheckAccess(address, size, size);
  NoteKernelAccess(address, size, {.writes = true, .is_atomic = true}, place);
  current_runner->clock.Update(address, order);
  const Bits before = Read(address, size);
  Write(address, size, next(before, operand));
  return before;
}

Bits ExchangeWordIf(void* address, size_t size, Bits expected, Bits bits, const void* place) {
  MayYield();
  CheckAccess(address, size, size);
  NoteKernelAccess(address, size, {.writes = true, .is_atomic = true}, place);
  current_runner->clock.Update(address, Order::kRelaxed);
  const Bits before = Read(address, size);
  if (before == expected) Write(address, size, bits);
  return before;
}

uint64_t GlobalTimer() {
  return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch() /
                               std::chrono::nanoseconds(1));
}

void Fence() { current_runner->clock.Fence(); }

}  // namespace eplb::cuda_emulator
