# One library per room, one test binary per room; warnings and sanitizers are the same for all.
include(GoogleTest)

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

# What follows may become part of libeplb.so: it is compiled once, for it and for everything else. Hidden, because the
# compiler may not look into a visible function that another library could replace.
macro(eplb_code_of_library)
  set(CMAKE_POSITION_INDEPENDENT_CODE ON)
  set(CMAKE_CXX_VISIBILITY_PRESET hidden)
  set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
endmacro()
# What follows is in programs only.
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

# eplb_add_test(placement_test SOURCES a_test.cc DEPS eplb::placement [LABELS unit] [TIMEOUT 60])
# registers every TEST of the binary with ctest. Tests find their data under EPLB_TEST_DATA.
function(eplb_add_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;DEPS;LABELS" ${ARGN})
  if(NOT ARG_LABELS)
    set(ARG_LABELS unit)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_compile_definitions(${name} PRIVATE EPLB_TEST_DATA="${PROJECT_SOURCE_DIR}/tests/data")
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} GTest::gmock GTest::gtest_main eplb_warnings)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  gtest_discover_tests(${name} TEST_PREFIX "${name}." DISCOVERY_MODE PRE_TEST NO_PRETTY_VALUES
    PROPERTIES TIMEOUT ${ARG_TIMEOUT} ENVIRONMENT "TSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/tests/support/tsan.supp")
  # gtest_discover_tests takes a list of labels apart; its list of tests does not.
  set(labels_file ${CMAKE_CURRENT_BINARY_DIR}/${name}_labels.cmake)
  file(WRITE ${labels_file}
    "if(${name}_TESTS)\n"
    "  set_tests_properties(\${${name}_TESTS} PROPERTIES LABELS \"${ARG_LABELS}\")\n"
    "endif()\n")
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES ${labels_file})
endfunction()
