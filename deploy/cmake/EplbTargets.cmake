# One library per room, one test binary per room; warnings and sanitizers are the same for all.

add_library(eplb_warnings INTERFACE)
target_compile_options(eplb_warnings INTERFACE
  "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wshadow;-Wconversion;-Wno-sign-conversion;-Wno-missing-field-initializers>"
  "$<$<COMPILE_LANG_AND_ID:CXX,Clang>:-Wthread-safety>"
  # g++ 12 sees uninitialised members in destructors of aggregates on paths that cannot happen;
  # clang and the sanitizers look for the real ones.
  "$<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-maybe-uninitialized>"
  # A type of an anonymous namespace is in the main file only when files are compiled alone.
  "$<$<AND:$<BOOL:${CMAKE_UNITY_BUILD}>,$<COMPILE_LANG_AND_ID:CXX,GNU>>:-Wno-subobject-linkage>")
if(EPLB_WERROR)
  target_compile_options(eplb_warnings INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:-Werror>")
endif()
if(EPLB_SANITIZE)
  # libFuzzer brings a main, which only the targets of tests/fuzz want.
  string(REPLACE "fuzzer" "fuzzer-no-link" sanitizers "${EPLB_SANITIZE}")
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${sanitizers};-fno-omit-frame-pointer;-fno-sanitize-recover=all>")
  add_link_options("-fsanitize=${sanitizers}")
endif()

# Following targets may become part of libeplb.so: they are compiled once, for the library and for programs. Their symbols are hidden,
# because the compiler must not inline a visible function that another library could replace.
macro(eplb_code_of_library)
  set(CMAKE_POSITION_INDEPENDENT_CODE ON)
  set(CMAKE_CXX_VISIBILITY_PRESET hidden)
  set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
endmacro()
# Following targets are in programs only.
macro(eplb_code_of_programs)
  unset(CMAKE_POSITION_INDEPENDENT_CODE)
  unset(CMAKE_CXX_VISIBILITY_PRESET)
  unset(CMAKE_VISIBILITY_INLINES_HIDDEN)
endmacro()

# eplb_add_library(placement SOURCES a.cc b.cc DEPS absl::statusor [PRIVATE_DEPS OpenSSL::Crypto])
# makes the target eplb_placement with the alias eplb::placement. OPTIMISED: also in a Debug tree,
# where its tests would take minutes else.
function(eplb_add_library room)
  cmake_parse_arguments(ARG "OPTIMISED" "" "SOURCES;DEPS;PRIVATE_DEPS" ${ARGN})
  add_library(eplb_${room} STATIC ${ARG_SOURCES})
  if(ARG_OPTIMISED)
    target_compile_options(eplb_${room} PRIVATE $<$<CONFIG:Debug>:-O2>)
  endif()
  add_library(eplb::${room} ALIAS eplb_${room})
  target_include_directories(eplb_${room} PUBLIC ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR})
  target_link_libraries(eplb_${room} PUBLIC ${ARG_DEPS} PRIVATE ${ARG_PRIVATE_DEPS} eplb_warnings)
endfunction()

# eplb_add_binary(eplbd SOURCES main.cc DEPS eplb::server) puts build/<preset>/bin/eplbd.
function(eplb_add_binary name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} eplb_warnings)
endfunction()

# eplb_add_test(placement_test SOURCES a_test.cc DEPS eplb::placement [LABELS unit] [TIMEOUT 120] [SHARDS 1] [FULL])
# registers the binary with ctest: as one test, or as one test for each of SHARDS parts of its TESTs. TIMEOUT is that of a
# part. FULL: the binary is built and run by the full gate only. Tests find their data under EPLB_TEST_DATA. Each run writes its
# results to build/<preset>/tests/gtest, where tests/summary.py reads them.
function(eplb_add_test name)
  cmake_parse_arguments(ARG "FULL" "TIMEOUT;SHARDS" "SOURCES;DEPS;LABELS" ${ARGN})
  if(NOT ARG_LABELS)
    set(ARG_LABELS unit)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  if(NOT ARG_SHARDS)
    set(ARG_SHARDS 1)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_compile_definitions(${name} PRIVATE EPLB_TEST_DATA="${PROJECT_SOURCE_DIR}/tests/data")
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} GTest::gmock GTest::gtest_main eplb_warnings)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  if(ARG_FULL)
    list(APPEND ARG_LABELS full)
    eplb_build_for_full_gate(${name})
  endif()
  math(EXPR last "${ARG_SHARDS} - 1")
  foreach(shard RANGE ${last})
    set(test ${name})
    if(ARG_SHARDS GREATER 1)
      set(test ${name}.${shard})
    endif()
    add_test(NAME ${test} COMMAND ${name} --gtest_brief=1)
    set_tests_properties(${test} PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "${ARG_LABELS}"
      ENVIRONMENT "GTEST_TOTAL_SHARDS=${ARG_SHARDS};GTEST_SHARD_INDEX=${shard};GTEST_OUTPUT=xml:${PROJECT_BINARY_DIR}/tests/gtest/${test}.xml;TSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/tests/support/tsan.supp")
  endforeach()
endfunction()

# eplb_build_for_full_gate(TARGET..): `all` does not build these targets; the target full_tests does.
function(eplb_build_for_full_gate)
  if(NOT TARGET full_tests)
    add_custom_target(full_tests)
  endif()
  set_target_properties(${ARGN} PROPERTIES EXCLUDE_FROM_ALL ON)
  add_dependencies(full_tests ${ARGN})
endfunction()

# eplb_full_gate(TEST..): tests of this directory that only the full gate runs.
function(eplb_full_gate)
  foreach(test ${ARGN})
    get_test_property(${test} LABELS labels)
    set_tests_properties(${test} PROPERTIES LABELS "${labels};full")
  endforeach()
endfunction()
