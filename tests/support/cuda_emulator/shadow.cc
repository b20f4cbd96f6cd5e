#include "tests/support/cuda_emulator/shadow.h"

#include <algorithm>
#include <array>
#include <memory>
#include <unordered_map>

namespace eplb::cuda_emulator {
namespace {

constexpr uintptr_t kWordBytes = 8;
constexpr uintptr_t kPageBytes = 4096;
constexpr size_t kNotes = 6;

struct Note {
  uint32_t block = 0;
  uint32_t time = 0;
  uint32_t place = 0;
  uint16_t thread = 0;
  uint8_t bytes = 0;  // bytes of the word, a bit each; 0: no note
  bool writes : 1 = false;
  bool is_atomic : 1 = false;

  Moment when() const { return {block, time, thread}; }
};
static_assert(sizeof(Note) == 16);

using Word = std::array<Note, kNotes>;  // those in use come first
using Page = std::array<Word, kPageBytes / kWordBytes>;

struct Shadow {
  std::unordered_map<uintptr_t, std::unique_ptr<Page>> pages;  // by number
  // Pages of recent accesses.
  struct Recent {
    uintptr_t number = 0;
    Page* page = nullptr;
  };
  std::array<Recent, 64> recent;
};

Shadow& TheShadow() {
  static auto* const shadow = new Shadow();
  return *shadow;
}

Word& WordAt(uintptr_t address) {
  Shadow& shadow = TheShadow();
  const uintptr_t number = address / kPageBytes;
  Shadow::Recent& recent = shadow.recent[number % shadow.recent.size()];
  if (recent.page == nullptr || recent.number != number) {
    std::unique_ptr<Page>& page = shadow.pages[number];
    if (page == nullptr) page = std::make_unique<Page>();
    recent = {number, page.get()};
  }
  return (*recent.page)[address % kPageBytes / kWordBytes];
}

// True if `old` shows all races that `note` would.
bool Covers(const Note& old, const Note& note) {
  return old.thread == note.thread && old.time == note.time && old.block == note.block &&
         (old.bytes & note.bytes) == note.bytes && (old.writes || !note.writes) &&
         (!old.is_atomic || note.is_atomic);
}

void Insert(Word& word, size_t used, const Note& note) {
  if (used == kNotes) {  // in place of a read, if there is one
    used = 0;
    while (used < kNotes - 1 && word[used].writes) ++used;
  }
  word[used] = note;
}

void AddTo(Word& word, const Note& note, const Clock& clock, bool of_block,
           std::vector<Conflict>& conflicts, const std::byte* at) {
  size_t used = 0;
  for (size_t i = 0; i < kNotes && word[i].bytes != 0; ++i) {
    const Note old = word[i];
    if (Covers(old, note)) return;
    const bool is_past = (of_block && old.block != note.block) || clock.Knows(old.when());
    const auto both = static_cast<uint8_t>(old.bytes & note.bytes);
    if (both != 0 && !is_past && (old.writes || note.writes) &&
        !(old.is_atomic && note.is_atomic)) {
      conflicts.push_back({old.when(), {old.writes, old.is_atomic, old.place}, at, both});
    }
    const bool is_covered = is_past && (note.writes || !old.writes) &&
                            (note.bytes & old.bytes) == old.bytes &&
                            (!note.is_atomic || old.is_atomic);
    if (is_covered || (of_block && old.block != note.block)) continue;
    if (used != i) word[used] = old;
    ++used;
  }
  for (size_t i = used; i < kNotes; ++i) word[i].bytes = 0;
  Insert(word, used, note);
}

}  // namespace

std::vector<Conflict> NoteAccess(const void* address, size_t size, const Access& access,
                                 const Clock& clock, bool of_block) {
  std::vector<Conflict> conflicts;
  const Moment& now = clock.now();
  Note note{.block = now.block,
            .time = now.time,
            .place = access.place,
            .thread = now.thread,
            .writes = access.writes,
            .is_atomic = access.is_atomic};
  const auto begin = reinterpret_cast<uintptr_t>(address);
  const uintptr_t end = begin + size;
  for (uintptr_t at = begin; at < end; at += kWordBytes - at % kWordBytes) {
    const uintptr_t first = at % kWordBytes;
    const uintptr_t count = std::min(kWordBytes - first, end - at);
    note.bytes = static_cast<uint8_t>(((1U << count) - 1) << first);
    const auto* const word = static_cast<const std::byte*>(address) + (at - begin) - first;
    AddTo(WordAt(at), note, clock, of_block, conflicts, word);
  }
  return conflicts;
}

void ForgetAccesses(const void* begin, size_t size) {
  Shadow& shadow = TheShadow();
  const auto address = reinterpret_cast<uintptr_t>(begin);
  for (uintptr_t page = address / kPageBytes; page * kPageBytes < address + size; ++page) {
    shadow.pages.erase(page);
    shadow.recent[page % shadow.recent.size()] = {};
  }
}

}  // namespace eplb::cuda_emulator
