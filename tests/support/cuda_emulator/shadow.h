// Shadow of the memory that kernels share: the latest accesses to each word, and who made them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tests/support/cuda_emulator/clock.h"

namespace eplb::cuda_emulator {

struct Access {
  bool writes = false;
  bool is_atomic = false;  // or volatile: ordered with other such accesses of the same bytes
  uint32_t place = 0;      // distance of the instruction from the start of the program
};

// An earlier access that nothing orders before the new one.
struct Conflict {
  Moment when;
  Access access;
  const std::byte* word = nullptr;  // 8 bytes
  uint8_t bytes = 0;                // bytes of the word that both access, a bit each
};

// Notes an access of the clock's thread and returns the conflicts. Keeps the first and the last of
// unordered accesses of one kind to the same bytes: a thread that conflicts with many of them then
// finds one by another thread. of_block: in shared memory, where a new block's accesses replace
// those of other blocks.
std::vector<Conflict> NoteAccess(const void* address, size_t size, const Access& access,
                                 const Clock& clock, bool of_block);

void ForgetAccesses(const void* begin, size_t size);
void ForgetAllAccesses();

}  // namespace eplb::cuda_emulator
