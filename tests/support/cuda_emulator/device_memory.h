// Accesses that kernels make by functions of CUDA and by PTX: atomics, fences, signal words,
// timers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tests/support/cuda_emulator/clock.h"

namespace eplb::cuda_emulator {

// Bits of a value of up to 8 bytes; bits above its size are 0.
using Bits = uint64_t;

// place: the instruction, see race.h. A load lets other threads run, because the caller may wait.
Bits LoadWord(const void* address, size_t size, Order order, const void* place);
void StoreWord(void* address, size_t size, Bits bits, Order order, const void* place);
// Returns the value before. next: the new value of the value before and the operand.
Bits UpdateWord(void* address, size_t size, Bits operand, Bits (*next)(Bits before, Bits operand),
                Order order, const void* place);
// Stores `bits` if the value is `expected`. Returns the value before.
Bits ExchangeWordIf(void* address, size_t size, Bits expected, Bits bits, const void* place);
void Fence();

uint64_t GlobalTimer();  // nanoseconds

}  // namespace eplb::cuda_emulator
