# Draws the loss curve of the main job. Called with -e "curve='….csv'; picture='….svg'".
set terminal svg size 900,560 font "sans-serif,15" background "white"
set output picture
set datafile separator ","
set title "A small language model whose loss head is weft at 4 ranks"
set xlabel "tokens trained on, thousands"
set ylabel "perplexity"
set logscale y
set xrange [0:*] noextend
set yrange [20:*] noextend
set ytics (50, 100, 200, 500, 1000, 2000, 5000, 10000)
set grid ytics lt 1 lw 1 lc rgb "#d8d8d8"
set border 3
set tics nomirror
set key bottom left reverse Left
plot curve using ($2/1000):(exp($6)) every ::1 with lines lw 2 dt 2 lc rgb "#777777" \
       title "held out, unigram baseline", \
     '' using ($2/1000):(exp($5)) every ::1 with linespoints lw 2 pt 7 ps 0.4 lc rgb "#c4501b" \
       title "held out", \
     '' using ($2/1000):(exp($4)) every ::1 with linespoints lw 2 pt 7 ps 0.4 lc rgb "#1f5fa8" \
       title "training, mean since the last point"
