#!/bin/sh
# Times the graphs of this folder on the phone that `adb` sees, and copies the times back.
#
#   ./on_phone.sh host        LIBRARIES          decodes with llada_host on the CPU
#   ./on_phone.sh benchmark   LIBRARIES [SOC]    LiteRT's benchmark, each signature by its name
#   ./on_phone.sh qnn         LIBRARIES SOC      qnn-net-run, each graph of the contexts
#   ./on_phone.sh onnxruntime LIBRARIES SOC      ONNX Runtime's QNN provider, each EPContext
#
# LIBRARIES is a folder with the programs and libraries that PUSH.md names for the route. The times
# are for: python -m experiments.calibrate measurements=measured/ROUTE parent=SOC
set -eu
route=$1 libraries=$2 soc=${3:-none}
question=${QUESTION:-How many eggs are in two boxes of six eggs?}
runs=${RUNS:-50}
target=/data/local/tmp/llada_jax/$(basename "$PWD")
out=measured/$route
status() { adb shell dumpsys thermalservice | tr -d '\r' | sed -n 's/^Thermal Status: *//p' | head -n 1; }
on_phone() {
  adb shell "cd $target && LD_LIBRARY_PATH=$target ADSP_LIBRARY_PATH=$target $*" < /dev/null
}
version=$(sed -n 's/^ *"ai-edge-litert": "\(.*\)".*/\1/p' manifest.json)
[ "$route" = host ] || [ "$route" = benchmark ] || version=$(sed -n 's/^ *"qnn_version": "\(.*\)".*/\1/p' manifest.json | head -n 1)

# Runs one row: a function of the route with the row's file, signature and name.
timed() {
  before=$(status)
  "$route" "$1" "$2" "$3" || { echo "no time of $3" >&2; return 0; }
  after=$(status)
  thermal=$after; [ "$before" -gt "$after" ] && thermal=$before
  grep "^$3," signatures.csv | sed "s/,[^,]*,[^,]*\$/,$thermal,$version/" >> "$out/rows.csv"
}
benchmark() {
  case $1 in
    context-*) on="--use_npu=true --dispatch_library_path=$target --require_full_delegation=true --qualcomm_htp_performance_mode=burst" ;;
    *) on=--use_cpu=true ;;
  esac
  on_phone ./benchmark_litert_model --graph="$1" --signature_to_run_for="$2" "$on" \
    --num_runs="$runs" --warmup_runs=5 --result_file_path="results/$3.pb"
  adb pull "$target/results/$3.pb" "$out/results/"
}
qnn() {
  line=$(grep "^$1 $2 " graphs.txt)
  inputs=$(echo "$line" | cut -d ' ' -f 5-)
  list=$(echo "$line" | cut -d ' ' -f 4)  # __ skips a graph of the context
  : > input_list.txt
  zeros=
  for input in $inputs; do zeros="$zeros ${input%%=*}:=zeros-${input##*=}"; done
  for _ in $(seq "$runs"); do echo "${zeros# }" >> input_list.txt; done
  adb push input_list.txt "$target/"
  for input in $inputs; do on_phone "head -c ${input##*=} /dev/zero > zeros-${input##*=}"; done
  on_phone ./qnn-net-run --backend libQnnHtp.so --retrieve_context "${1%.tflite}.bin" --input_list "$list" \
    --config_file burst.json --profiling_level basic --output_dir out --keep_num_outputs 1 \
    --use_native_input_files --use_native_output_files
  adb pull "$target/out/qnn-profiling-data_0.log" "$out/"
  qnn-profile-viewer --input_log "$out/qnn-profiling-data_0.log" --output "$out/results/$3.csv"
}
onnxruntime() {
  on_phone ./onnxruntime_perf_test -I -e qnn -m times -r "$runs" \
    -i "'backend_path|libQnnHtp.so htp_performance_mode|burst profiling_level|basic profiling_file_path|results/$3.csv'" \
    "${1%.tflite}-$2.onnx"
  adb pull "$target/results/$3.csv" "$out/results/"
}

mkdir -p "$out/results"
adb shell mkdir -p "$target/results" "$target/packed"
adb push "$libraries"/. "$target/"
if [ "$route" = host ]; then
  for file in *.tflite *.bin *.json *.jinja *.txt; do
    case $file in context-*|calibration-*|emulated-*|"*"*) continue ;; esac
    adb push "$file" "$target/"
  done
  before=$(status)
  on_phone "chmod +x llada_host && ./llada_host . --library ./libLiteRt.so --packed packed --csv results/rows.csv --thermal $before --prompt '$question'"
  after=$(status)
  adb pull "$target/results/rows.csv" "$out/rows.csv"
  [ "$after" -le "$before" ] || sed -i "2,\$s/,$before,\([^,]*\)\$/,$after,\1/" "$out/rows.csv"
  exit
fi
head -n 1 signatures.csv > "$out/rows.csv"
on_phone "chmod +x benchmark_litert_model qnn-net-run onnxruntime_perf_test 2> /dev/null; true"
if [ "$route" = qnn ]; then
  extensions='{"backend_extensions": {"shared_library_path": "libQnnHtpNetRunExtensions.so", "config_file_path": "htp.json"}}'
  htp='{"devices": [{"cores": [{"perf_profile": "burst", "rpc_polling_time": 9999, "rpc_control_latency": 100}]}]}'
  adb shell "cd $target && echo '$extensions' > burst.json && echo '$htp' > htp.json"
fi
pushed=
tail -n +2 signatures.csv | while IFS=, read -r name file signature _; do
  case $file in
    "context-$soc-"*) ;;
    context-*) continue ;;
    *) [ "$route" = benchmark ] || continue ;;
  esac
  if [ "$file" != "$pushed" ]; then
    pushed=$file
    [ "$route" = benchmark ] && adb push "$file" "$target/" || adb push "${file%.tflite}.bin" "$target/"
  fi
  [ "$route" = onnxruntime ] && adb push "${file%.tflite}-$signature.onnx" "$target/"
  timed "$file" "$signature" "$name" < /dev/null
done
