#include "tests/support/cuda_emulator/race.h"

#include <unistd.h>

#include <array>
#include <bit>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

#include "tests/support/cuda_emulator/launch_order.h"
#include "tests/support/cuda_emulator/machine.h"
#include "tests/support/cuda_emulator/memory.h"
#include "tests/support/cuda_emulator/shadow.h"

extern "C" const char __executable_start;  // NOLINT: a name of the linker

namespace eplb::cuda_emulator {
namespace {

// An instruction by its distance from the start of the program. A return address is of the
// instruction after the call.
uint32_t PlaceOf(const void* instruction) {
  return static_cast<uint32_t>(static_cast<const char*>(instruction) - &__executable_start - 1);
}

// Runs addr2line, because only a report needs the place. Returns "file:line", for inlined functions
// with the lines that call them.
std::string LineOf(uint32_t place) {
  std::array<char, 4096> text{};
  const ssize_t length = readlink("/proc/self/exe", text.data(), text.size() - 1);
  const std::string command =
      absl::StrCat("addr2line -i -e '", std::string(text.data(), length > 0 ? length : 0), "' 0x",
                   absl::Hex(place), " 2>/dev/null");
  std::string lines;
  if (FILE* const pipe = popen(command.c_str(), "r"); pipe != nullptr) {
    while (std::fgets(text.data(), static_cast<int>(text.size()), pipe) != nullptr) {
      if (std::strstr(text.data(), "device_language.h") != nullptr) continue;
      const char* const line = text.data() + (text[0] == '.' && text[1] == '/' ? 2 : 0);
      absl::StrAppend(&lines, lines.empty() ? "" : " < ", line);
      if (lines.back() == '\n') lines.pop_back();
    }
    pclose(pipe);
  }
  return lines.empty() ? absl::StrCat("0x", absl::Hex(place)) : lines;
}

const char* NameOf(const Access& access) {
  if (access.is_atomic) return access.writes ? "an atomic update" : "an atomic load";
  return access.writes ? "a write" : "a read";
}

std::string Described(const Access& now, const Conflict& past) {
  const std::byte* const at = past.word + std::countr_zero(past.bytes);
  const std::byte* const shared = current_runner->shared;
  const bool is_shared = at >= shared && at < shared + kMostSharedBytes;
  return absl::StrCat(
      "a race on ",
      is_shared ? absl::StrCat("shared memory at byte ", at - shared)
                : absl::StrCat("memory at 0x", absl::Hex(reinterpret_cast<uintptr_t>(at))),
      ": ", NameOf(now), " at ", LineOf(now.place), " is not ordered with ", NameOf(past.access),
      " by thread ", past.when.thread, " of ", NameOfBlock(past.when.block), " at ",
      LineOf(past.access.place));
}

// A write that follows another of the same bytes and is no race if it leaves them as they are: as
// to compute-sanitizer, two writes of one value are none.
struct Suspect {
  Access access;
  Conflict conflict;
  std::array<std::byte, 8> before{};
};
// Suspects among the latest writes of the thread that runs. They are checked before another runs.
std::vector<Suspect> suspects;

void CheckSuspects() {
  for (const Suspect& suspect : suspects) {
    for (size_t i = 0; i < suspect.before.size(); ++i) {
      if ((suspect.conflict.bytes >> i & 1) == 0) continue;
      if (suspect.conflict.word[i] == suspect.before[i]) continue;
      const std::string text = Described(suspect.access, suspect.conflict);
      suspects.clear();
      Stop(text);
    }
  }
  suspects.clear();
}

}  // namespace

void CheckWrites() {
  if (!suspects.empty()) CheckSuspects();
}

void NoteKernelAccess(const void* address, size_t size, AccessKind kind, const void* place) {
  const Runner* const runner = current_runner;
  if (runner == nullptr) return;
  CheckWrites();
  const auto* const at = static_cast<const std::byte*>(address);
  const bool of_block = at >= runner->shared && at < runner->shared + kMostSharedBytes;
  if (!of_block && !IsWatched(address)) return;
  const Access access{.writes = kind.writes, .is_atomic = kind.is_atomic, .place = PlaceOf(place)};
  for (const Conflict& past : NoteAccess(address, size, access, runner->clock, of_block)) {
    if (!access.writes || !past.access.writes || access.is_atomic) Stop(Described(access, past));
    suspects.push_back({.access = access, .conflict = past});
    std::memcpy(suspects.back().before.data(), past.word, sizeof(Suspect::before));
  }
}

void BeginRaceDetection(bool overlaps) {
  suspects.clear();
  ForgetReleases();
  if (!overlaps) ForgetAllAccesses();
}

const void* Here() { return __builtin_return_address(0); }

}  // namespace eplb::cuda_emulator
