# Compiles device code. An instance is a small .cu file in device C; each is compiled alone, ahead
# of time, by nvcc into a fat binary that is embedded in a library or program, and by gcc as C11,
# which is what loom runs. The start of its name says for which GPUs: sm90_, sm100_ or smxx_ (all).
# Without nvcc nothing is embedded, and the library is CPU-only.

set(WEFT_CUDA AUTO CACHE STRING "Embed GPU code: AUTO (where nvcc is found), ON or OFF")
set_property(CACHE WEFT_CUDA PROPERTY STRINGS AUTO ON OFF)
set(WEFT_DEVICE_DIR ${CMAKE_CURRENT_LIST_DIR})
set(WEFT_ROOT ${CMAKE_CURRENT_LIST_DIR}/..)

set(WEFT_GENCODE_sm90 -gencode arch=compute_90a,code=sm_90a)
set(WEFT_GENCODE_sm100 -gencode arch=compute_100f,code=sm_100f)
set(WEFT_GENCODE_smxx ${WEFT_GENCODE_sm90} ${WEFT_GENCODE_sm100})

set(WEFT_HAVE_NVCC FALSE)
if(NOT WEFT_CUDA STREQUAL OFF)
  find_program(WEFT_NVCC nvcc HINTS ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin)
  if(WEFT_NVCC)
    set(WEFT_HAVE_NVCC TRUE)
    message(STATUS "Device code: ${WEFT_NVCC}")
  elseif(WEFT_CUDA STREQUAL ON)
    message(FATAL_ERROR "WEFT_CUDA is ON, and no nvcc was found")
  else()
    message(STATUS "Device code: no nvcc, the GPU backend is off")
  endif()
endif()

# weft_nvcc(<out variable> <instance.cu>): a command that compiles an instance into a fat binary, again
# when a header of it changes; fails on what cmake/nvcc.cmake says. Gives the fat binary's path.
function(weft_nvcc out source)
  get_filename_component(source ${source} ABSOLUTE)
  get_filename_component(name ${source} NAME_WE)
  string(REGEX MATCH "^(sm90|sm100|smxx)_" prefix ${name})
  if(NOT prefix)
    message(FATAL_ERROR "${source}: a device instance is named sm90_, sm100_ or smxx_")
  endif()
  set(fatbin ${CMAKE_CURRENT_BINARY_DIR}/device/${name}.fatbin)
  add_custom_command(
    OUTPUT ${fatbin}
    COMMAND ${CMAKE_COMMAND} -P ${WEFT_DEVICE_DIR}/nvcc.cmake -- ${fatbin}.log
            ${WEFT_NVCC} -fatbin -O3 -std=c++17 ${WEFT_GENCODE_${CMAKE_MATCH_1}}
            --ptxas-options=-v -I${WEFT_ROOT}/src -I${CMAKE_CURRENT_SOURCE_DIR} -MD -MF ${fatbin}.d -MT ${fatbin}
            -o ${fatbin} ${source}
    DEPENDS ${source} ${WEFT_DEVICE_DIR}/nvcc.cmake
    DEPFILE ${fatbin}.d
    COMMENT "Device code ${name}"
    VERBATIM)
  set_property(GLOBAL APPEND PROPERTY WEFT_NVCC_SOURCES ${source})
  set(${out} ${fatbin} PARENT_SCOPE)
endfunction()

# weft_embed_device(<target> <symbol> <instance.cu>...): adds to the target a `struct device_images
# <symbol>` with the fat binary of each instance.
function(weft_embed_device target symbol)
  set(assembly "")
  set(entries "")
  set(declarations "")
  set(fatbins "")
  set(count 0)
  if(WEFT_HAVE_NVCC)
    foreach(source IN LISTS ARGN)
      get_filename_component(name ${source} NAME_WE)
      weft_nvcc(fatbin ${source})
      list(APPEND fatbins ${fatbin})
      string(APPEND assembly
             "    \".globl ${symbol}_${name}\\n.hidden ${symbol}_${name}\\n.balign 64\\n\"\n"
             "    \"${symbol}_${name}: .incbin \\\"${fatbin}\\\"\\n\"\n")
      string(APPEND declarations "extern const unsigned char ${symbol}_${name}[] HIDDEN;\n")
      string(APPEND entries "    {\"${name}\", ${symbol}_${name}, NULL},\n")
      math(EXPR count "${count} + 1")
    endforeach()
  endif()
  set(table ${CMAKE_CURRENT_BINARY_DIR}/device/${symbol}.c)
  file(CONFIGURE OUTPUT ${table} @ONLY CONTENT [[
/* Generated: the fat binaries of this build. */
#include "cuda/cuda.h"

#define HIDDEN __attribute__((visibility("hidden")))
__asm__(".pushsection .rodata,\"a\"\n"
@assembly@    ".popsection\n");
@declarations@
static struct device_image images[] = {
@entries@    {NULL, NULL, NULL}};
struct device_images @symbol@ = {@count@, images};
]])
  # The target may live in another directory: its objects wait for the fat binaries by name, and for a change by file.
  if(fatbins)
    add_custom_target(${target}_${symbol}_fatbins DEPENDS ${fatbins})
    add_dependencies(${target} ${target}_${symbol}_fatbins)
  endif()
  set_source_files_properties(${table} TARGET_DIRECTORY ${target} PROPERTIES
    OBJECT_DEPENDS "${fatbins}" INCLUDE_DIRECTORIES "${WEFT_ROOT}/src;${WEFT_ROOT}/include")
  target_sources(${target} PRIVATE ${table})
endfunction()

# weft_add_device_gcc(NAME FILE.cu [DEFINITIONS ...]): makes the object library NAME of the same
# file, compiled as C for loom. Statement expressions make call sites, so gnu11; arguments are
# passed by value with 64-byte alignment, which gcc remarks on (psabi) for callers older than
# itself.
function(weft_add_device_gcc name source)
  get_filename_component(source ${source} ABSOLUTE)
  add_library(${name} OBJECT ${source})
  set_property(GLOBAL APPEND PROPERTY WEFT_GCC_SOURCES ${source})
  set_source_files_properties(${source} PROPERTIES LANGUAGE C COMPILE_OPTIONS "-x;c")
  target_include_directories(${name} PRIVATE ${WEFT_ROOT}/include ${WEFT_ROOT}/src)
  get_filename_component(root ${WEFT_ROOT} ABSOLUTE)
  target_compile_options(${name} PRIVATE -std=gnu11 -O2 -Wall -Wextra -Wno-psabi -fmacro-prefix-map=${root}/=)
  set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  if(WEFT_SANITIZE)
    # Its memory is loom's, which checks each access itself; and these files take a minute each to instrument.
    target_compile_options(${name} PRIVATE -fno-sanitize=all)
  endif()
  if(ARGN)
    target_compile_definitions(${name} PRIVATE ${ARGN})
  endif()
endfunction()

# weft_compile_rest(<instance.cu>...): compiles with nvcc, and as C with gcc, what nothing above has compiled
# so, as part of the whole build.
function(weft_compile_rest)
  get_property(by_nvcc GLOBAL PROPERTY WEFT_NVCC_SOURCES)
  get_property(by_gcc GLOBAL PROPERTY WEFT_GCC_SOURCES)
  set(fatbins "")
  foreach(source IN LISTS ARGN)
    get_filename_component(name ${source} NAME_WE)
    if(WEFT_HAVE_NVCC AND NOT source IN_LIST by_nvcc)
      weft_nvcc(fatbin ${source})
      list(APPEND fatbins ${fatbin})
    endif()
    if(NOT source IN_LIST by_gcc)
      weft_add_device_gcc(weft_rest_${name} ${source})
    endif()
  endforeach()
  add_custom_target(weft_rest_fatbins ALL DEPENDS ${fatbins})
endfunction()
