# Device code under gcc: the same .cu files that nvcc compiles, as C for loom.
#
#   weft_add_device_gcc(NAME FILE.cu [DEFINITIONS ...])
#
# makes the object library NAME. Statement expressions make call sites, so gnu11; arguments are passed
# by value with 64-byte alignment, which gcc remarks on (psabi) for callers older than itself.
function(weft_add_device_gcc name source)
  get_filename_component(source ${source} ABSOLUTE)
  add_library(${name} OBJECT ${source})
  set_source_files_properties(${source} PROPERTIES LANGUAGE C COMPILE_OPTIONS "-x;c")
  set(root ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/..)
  target_include_directories(${name} PRIVATE ${root}/include ${root}/src)
  target_compile_options(${name} PRIVATE -std=gnu11 -O2 -Wall -Wextra -Wno-psabi)
  set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  if(ARGN)
    target_compile_definitions(${name} PRIVATE ${ARGN})
  endif()
endfunction()
